'use strict';
// The laboratory with a program behind it (`probe explore`): a prompt, a change, both continuations. Draws what the program answers;
// nothing is computed here.

/** Asks the program; its own words where it refuses. */
async function ask(what) {
  const answer = await fetch(`/ask${location.search}`, { method: 'POST', body: JSON.stringify(what) });
  if (!answer.ok) throw new Error(await answer.text());
  const { ok, error } = await answer.json();
  if (error) throw new Error(error);
  return ok;
}

/** Rows as draw.js reads them: places with what each layer would say there. */
function rowOf(subject, { words, steps, says, trace: told }) {
  const from = told.prompt.length;
  const all = words.map((word, i) => {
    const token = told.prompt[i] ?? told.positions[i - from]?.token;
    subject.words.words[token] = word;
    const { kind = 'prompt', logprob, entropy, p_swi: pSwi, p_exit: pExit } = told.positions[i - from] ?? {};
    const [, block, step] = /^latent\[(\d+),(\d+)\]$/u.exec(steps[i]) ?? [];
    const seen = { resid: says.map((layer) => ({ says: layer[i] })), pattern: null };
    return { token, kind, logprob, entropy, pSwi, pExit, block: block - 1, step: step - 1, seen, next: true };
  });
  return { prompt: all.slice(0, from), positions: all.slice(from) };
}

/** A word as a shell takes it; with line breaks, which a page does not show, as bash writes them. */
const quoted = (text) =>
  /[\u0000-\u001f]/u.test(text)
    ? `$'${text.replaceAll('\\', '\\\\').replaceAll("'", "\\'").replaceAll('\n', '\\n').replaceAll('\t', '\\t')}'`
    : `'${text.replaceAll("'", "'\\''")}'`;

class Explorer {
  constructor(root, { model, chat, examples }) {
    Object.assign(this, { root, about: model, chat, examples, at: null, runs: [], turn: 0 });
    this.subject = { words: { words: [] }, model: { first: 0, layers: { length: model.layers - 1 }, lens: (x) => x }, after: 1 };
    this.build();
  }

  field(key, label, element) {
    this[key] = element;
    return el('label', { class: 'lab-own' }, label, ' ', element);
  }

  build() {
    const area = (rows) => el('textarea', { rows, cols: 70, spellcheck: 'false', autocomplete: 'off' });
    const box = (name, attributes = {}) => (this[name] = el('div', attributes));
    const part = (title, ...rest) => el('section', { class: 'lab-step' }, el('h2', {}, title), rest);
    const example = (text) => el('button', { type: 'button', click: () => (this.change.value += `${this.change.value ? '\n' : ''}${text}`) }, text);
    const last = this.about.layers - 1;
    const examples = [`blocks.${last}.hook_resid_post@pos[-1]=zero`, `blocks.${last >> 1}.attn.hook_z[head=0]=zero`];
    if (this.about.switches) examples.push('latent.hook_injected=zero', 'latent.hook_injected=random_norm');
    const start = (text) => el('button', { type: 'button', click: () => (this.prompt.value = text) }, text);
    this.root.onkeydown = (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key === 'Enter') this.run();
    };
    this.root.replaceChildren(
      part(
        '1 A prompt',
        this.field('prompt', 'The text that the model continues', area(3)),
        el('p', { class: 'note' }, 'For example: ', this.examples.map(start)),
        el(
          'div',
          { class: 'lab-controls' },
          this.chat && this.field('form', 'as a message, in the model’s own chat template', el('input', { type: 'checkbox' })),
          this.field('most', 'New tokens at most', el('input', { type: 'number', min: 1, max: 1000, value: 60 })),
        ),
      ),
      part(
        '2 A change, if you like',
        this.field('change', 'One change a line: a place, =, and what is done there', area(2)),
        el('p', { class: 'note' }, 'For example: ', examples.map(example)),
        this.about.switches && this.field('other', 'Or another prompt, whose thoughts are put in the place of this one’s', area(2)),
        el('p', {}, el('button', { type: 'button', 'data-key': 'run', click: () => this.run() }, 'Run'), ' ', el('small', {}, 'or Ctrl+Enter')),
      ),
      part('3 What it writes', box('result', { 'aria-live': 'polite' })),
      part('Look inside', box('inside')),
      part('The same from the command line', box('take')),
    );
  }

  /** The prompt as it is and, where something is changed, with the change. */
  async run() {
    const turn = ++this.turn;
    const asked = { do: 'see', prompt: this.prompt.value, chat: this.form?.checked ?? false, settings: { max_new_tokens: Number(this.most.value) } };
    const hooks = this.change.value.split('\n').map((line) => line.trim()).filter(Boolean);
    const other = this.other?.value.trim() || null;
    this.root.setAttribute('aria-busy', 'true');
    redraw(this.result, el('p', { class: 'note' }, 'The model is at work …'));
    const runs = [];
    try {
      for (const changed of hooks.length || other ? [false, true] : [false]) {
        const told = await ask(changed ? { ...asked, hooks, other } : asked);
        runs.push({ title: changed ? 'with the change' : 'as it is', told, row: rowOf(this.subject, told) });
      }
    } catch (error) {
      runs.length = 0;
      redraw(this.result, el('p', { class: 'lab-warn' }, error.message));
    }
    if (turn !== this.turn) return;
    Object.assign(this, { runs, at: null, asked: { ...asked, hooks, other } });
    this.root.removeAttribute('aria-busy');
    if (runs.length) this.draw();
  }

  /** The chosen place; the one before the last word where none is chosen. */
  place({ row, told }) {
    const last = row.positions.length - (told.trace.end === 'stop' ? 3 : 2);
    return Math.max(0, Math.min(this.at ?? last, row.positions.length - 1));
  }

  draw() {
    const [first] = this.runs;
    redraw(
      this.result,
      this.runs.map((run, i) =>
        el(
          'div',
          { class: 'lab-line' },
          el('h3', {}, run.title),
          el(
            'div',
            { class: 'lab-said' },
            trace(this.subject, run.row, {
              key: `r${i}-`,
              label: `What the model writes, ${run.title}`,
              at: this.place(run),
              against: i > 0 ? first.row : null,
              choose: (at) => {
                this.at = at;
                this.draw();
              },
            }),
          ),
          el('p', { class: 'lab-answer' }, run.told.text),
          run.told.warning && el('p', { class: 'lab-warn' }, run.told.warning),
          run.told.fired.map(({ hook, fired, mean_change: moved }) =>
            el('p', { class: 'note' }, `${hook}: ${fired} ${fired === 1 ? 'time' : 'times'}, moved by ${moved.toPrecision(3)} on average`),
          ),
        ),
      ),
    );
    const note = el('p', { class: 'note' }, 'Choose a place by clicking a word above.');
    redraw(this.inside, el('div', { class: 'lab-views' }, note, this.runs.map((run) => this.view(run))));
    redraw(this.take, this.commands().map((line) => el('pre', {}, line)));
  }

  view(run) {
    const { row, told, title } = run,
      at = this.place(run),
      position = row.positions[at];
    if (!position) return el('p', { class: 'note' }, `${title}: nothing was written.`);
    const region = (label, child) => el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `${label}, ${title}` }, child);
    const shownAt = position.kind === 'latent' ? row.positions.filter((p) => p.kind === 'latent' && p.block === position.block) : [position];
    const look = el('div');
    const drawHeads = () => redraw(look, region('Heads', heads(this.subject, row, at, `Where every head looks from place ${at + 1}, ${title}`)));
    const fetchHeads = async () => {
      try {
        const place = told.trace.prompt.length + at;
        position.seen.pattern = (await ask({ do: 'heads', trace: told.trace, hooks: told.hooks, at: place })).pattern;
        drawHeads();
      } catch (error) {
        redraw(look, el('p', { class: 'lab-warn' }, error.message));
      }
    };
    if (position.seen.pattern) drawHeads();
    else look.append(el('button', { type: 'button', 'data-key': `heads ${title}`, click: fetchHeads }, 'Show where every head looks from here'));
    return el(
      'section',
      { class: 'lab-view' },
      el('h3', {}, `${title}: ${wordOf(this.subject.words, position)}`),
      probabilities(this.subject, position, 'The next token'),
      lensTable(this.subject, shownAt, `What each layer would say (logit lens), ${title}`),
      look,
      this.about.switches && el('h4', {}, 'p(<swi>) before each word, p(</swi>) after each latent step'),
      this.about.switches && region('Switching', switching(this.subject, row, `p(<swi>) along the text, ${title}`)),
    );
  }

  /** The commands that do the same, one after the other. */
  commands() {
    const { prompt, chat, hooks, other, settings } = this.asked;
    const base = (text) =>
      `probe generate ${quoted(this.about.model)} --prompt ${quoted(text)}${chat ? ' --chat' : ''} --max-new-tokens ${settings.max_new_tokens}`;
    const changes = hooks.map((hook) => ` --hook ${quoted(hook)}`).join('');
    if (!other) return [base(prompt) + changes];
    const file = 'thoughts.safetensors';
    return [
      `${base(other)} --record latent.hook_injected --out ${file}`,
      `${base(prompt)}${changes} --hook 'latent.hook_injected=swap:${file}'`,
    ];
  }
}

const root = document.getElementById('explore');
ask({ do: 'about' }).then(
  (about) => (root.view = new Explorer(root, about)),
  (error) => (root.textContent = `The program does not answer: ${error.message}`),
);
