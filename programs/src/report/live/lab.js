'use strict';
// The laboratory of the page: a problem, another thought put into it, a prediction, both answers. Draws what bench.js computes and hands
// back what is chosen.

const TOUR = [
  [
    'try-1',
    'This small model runs here, in your browser. It was asked a problem and wrote the line below it. In a pink chip it writes nothing: it thinks, and the words in the chip are what each hidden step would say.',
  ],
  ['try-2', 'Here is another problem with its own thought. Drag its pink chip onto the chip above, or leave it: it is put in already.'],
  [
    'try-3',
    'Now say which answer you expect, then look. If the answer follows the thought that was put in, the model reads its hidden steps.',
  ],
];

class Lab extends Bench {
  constructor(root, data, blob, address = true) {
    super(data, blob, address);
    Object.assign(this, { root, score: { right: 0, all: 0 }, turn: 0 });
    this.build();
    if (address) addEventListener('hashchange', () => location.hash.startsWith('#try?') && this.open());
    this.open();
  }

  build() {
    const part = (id, number, title, ...rest) =>
      el(
        'section',
        { class: 'lab-step', id, 'aria-labelledby': `${id}-title` },
        el('h3', { id: `${id}-title` }, el('b', {}, number), title),
        rest,
      );
    const box = (name, attributes = {}) => (this[name] = el('div', attributes));
    this.root.replaceChildren(
      box('tour', { class: 'lab-tour', role: 'status' }),
      part('try-1', '1', 'A problem, and what the model writes', box('ask', { class: 'lab-controls' }), box('first')),
      part('try-2', '2', 'Put another thought in its place', box('change', { class: 'lab-controls' }), box('second')),
      part('try-3', '3', 'Which answer comes out?', box('predict'), box('result', { 'aria-live': 'polite' })),
      el(
        'details',
        { class: 'lab-inside', toggle: () => this.draw() },
        el('summary', {}, el('h3', {}, 'Look inside: layers, heads, probabilities')),
        box('inside'),
      ),
      el(
        'details',
        { class: 'lab-inside', toggle: () => this.draw() },
        el('summary', {}, el('h3', {}, 'Take it with you: link, rows, figure, command')),
        box('take'),
      ),
    );
    this.drawTour(-1);
  }

  drawTour(step) {
    this.root.querySelectorAll('.lab-step').forEach((part) => part.classList.toggle('here', part.id === TOUR[step]?.[0]));
    const button = (text, to) => el('button', { type: 'button', 'data-key': text, click: () => this.drawTour(to) }, text);
    if (step < 0) return redraw(this.tour, el('p', {}, 'New here? ', button('Take the tour', 0), ' Three steps, half a minute.'));
    if (step >= TOUR.length)
      return redraw(
        this.tour,
        el(
          'p',
          {},
          'That was it. Now try zeros, noise or a value of your own: which of them keep the answer? ',
          button('Take the tour', 0),
        ),
      );
    this.root.querySelector(`#${TOUR[step][0]}`).scrollIntoView({ block: 'nearest' });
    return redraw(
      this.tour,
      el('p', {}, el('b', {}, `${step + 1} of ${TOUR.length}. `), TOUR[step][1]),
      el('p', {}, step > 0 && button('Back', step - 1), button(step + 1 < TOUR.length ? 'Next' : 'Done', step + 1), button('Close', -1)),
    );
  }

  /** Says what takes a while. */
  waiting(what) {
    redraw(this.result, el('p', { class: 'note' }, what));
  }

  /** Computes and draws; `sliding`: but not the slider that is being moved. */
  async draw(sliding = false) {
    const turn = ++this.turn,
      { state } = this;
    this.root.setAttribute('aria-busy', 'true');
    const sides = [];
    try {
      for (const name of [state.model, state.beside].filter(Boolean)) sides.push(await this.side(name));
    } catch (error) {
      this.root.removeAttribute('aria-busy');
      return redraw(this.result, el('p', { class: 'lab-warn' }, `This cannot be computed: ${error.message}`));
    }
    if (turn !== this.turn) return undefined;
    this.sides = sides;
    const [main] = sides;
    this.drawAsk(main);
    redraw(
      this.first,
      sides.map((side, i) => this.drawRow(side, i)),
    );
    if (!sliding) this.drawChange(main);
    redraw(
      this.second,
      state.change === 'swap' && sides.map((side, i) => this.drawOther(side, i)),
      state.change === 'swap' &&
        el(
          'p',
          { class: 'note' },
          'Drag a pink chip from here onto one above, or choose with the menus. With “step … only”, drag single words of a chip.',
        ),
    );
    this.drawPredict(main);
    redraw(this.result, (main.why || state.guess !== null) && sides.map((side, i) => this.drawResult(side, i)));
    const [inside, take] = this.root.querySelectorAll('.lab-inside');
    redraw(this.inside, inside.open && this.drawInside());
    redraw(this.take, take.open && this.drawTake(main));
    this.root.removeAttribute('aria-busy');
    try {
      if (this.inAddress && (this.touched || location.hash.startsWith('#try'))) history.replaceState(null, '', this.address());
    } catch {
      /* a page in a frame keeps its address */
    }
    this.touched = true;
    return undefined;
  }

  select(label, value, options, choose, extra = {}) {
    return el(
      'label',
      extra,
      label,
      ' ',
      el(
        'select',
        { 'data-key': label, change: (event) => choose(event.target.value) },
        options.map(([key, text]) => el('option', { value: key, selected: String(key) === String(value) }, text)),
      ),
    );
  }

  /** A problem from the list or typed; `keys` are its names in the state. */
  picker(label, run, [number, text], problem) {
    const { state } = this,
      typed = state[text],
      wrong = typed && (problem.plan.wrong || '');
    const strange = typed ? new Words(run.tokenizer).strange(typed) : [];
    const list = run.problems.map((question, i) => [i, `${i + 1}. ${question}`]);
    const apply = (value) =>
      this.set({ [text]: value.trim().replace(/\s+/gu, ' '), block: 0, ...(text === 'otherText' ? { from: 0 } : {}), at: null });
    return [
      this.select(label, typed ? 'own' : state[number], [...list, ['own', 'my own: type it']], (value) =>
        value === 'own'
          ? apply(problem.question)
          : this.set({ [number]: Number(value), [text]: '', at: null, ...(text === 'otherText' ? { from: 0 } : { block: 0 }) }),
      ),
      typed &&
        el(
          'label',
          { class: 'lab-own' },
          'Your problem ',
          el('input', {
            value: typed,
            size: 40,
            spellcheck: 'false',
            autocomplete: 'off',
            'data-key': `${label} typed`,
            change: (event) => apply(event.target.value) || null,
          }),
        ),
      (wrong || strange.length > 0) &&
        el(
          'p',
          { class: 'lab-warn' },
          strange.length ? `The model does not know ${strange.map((w) => `“${w}”`).join(', ')}: it reads an unknown word there. ` : '',
          wrong ? `${wrong} The model runs all the same; nothing is predicted.` : '',
        ),
    ];
  }

  drawAsk({ subject, problem }) {
    const { state } = this,
      names = this.models.map(({ name, run, model }) => [name, `${run.name}: ${model.title}`]);
    const others = names.filter(([name]) => name !== state.model && this.of(name).run === subject.run);
    redraw(
      this.ask,
      this.picker('Problem', subject.run, ['problem', 'text'], problem),
      names.length > 1 &&
        this.select('Model', state.model, names, (model) =>
          this.set(
            this.of(model).run === subject.run ? { model, beside: state.beside === model ? '' : state.beside } : { ...FIRST, model },
          ),
        ),
      others.length > 0 && this.select('Beside it', state.beside, [['', 'none'], ...others], (beside) => this.set({ beside })),
    );
  }

  drawRow({ subject, problem, own, block }, i) {
    const { state } = this,
      drop = (b, step) => ({
        dragover: (event) => {
          event.preventDefault();
          event.currentTarget.classList.add('over');
        },
        dragleave: (event) => event.currentTarget.classList.remove('over'),
        drop: (event) => {
          event.preventDefault();
          event.stopPropagation();
          this.drop(JSON.parse(event.dataTransfer.getData('text/plain') || 'null'), b, step);
        },
      });
    const steps = state.steps,
      first = this.sides[0];
    return el(
      'div',
      { class: 'lab-line' },
      this.sides.length > 1 && el('h4', {}, subject.name),
      i === 0 &&
        el(
          'p',
          { class: 'lab-asked' },
          el('span', {}, 'Asked '),
          problem.question,
          subject.run.modulus && el('span', {}, ` (numbers begin again at ${subject.run.modulus}: ${subject.run.modulus - 1} + 1 = 0)`),
        ),
      el(
        'div',
        { class: 'lab-said' },
        el('span', {}, 'Writes '),
        trace(subject, own.row, {
          key: `n${i}-`,
          label: `What ${subject.name} writes`,
          at: this.at({ subject, row: own.row }),
          stands: own.stands,
          against: i > 0 ? first.own.row : null,
          choose: (at) => this.set({ at, ...(own.row.positions[at].kind === 'latent' ? { block: own.row.positions[at].block } : {}) }),
          chip: (b) => ({ ...drop(b, null), 'data-target': b === block ? 'true' : null }),
          latent: (b, step) => ({
            ...(steps === 'all' ? {} : drop(b, step)),
            'data-target': b === block && (steps === 'all' || steps.includes(step)) ? 'true' : null,
          }),
        }),
      ),
      el(
        'p',
        { class: 'lab-answer' },
        'Answer ',
        el('b', {}, own.answer ?? 'none'),
        own.right !== null && (own.right ? ' — right' : ` — wrong, it is ${own.gold}`),
      ),
    );
  }

  /** What was dragged (`{ from, step }`) lands on a block, or on one step of it. */
  drop(dragged, block, step) {
    if (!dragged) return;
    const single = dragged.step !== null && step !== null;
    this.set({ change: 'swap', block, from: dragged.from, steps: single ? [step] : 'all', fromStep: single ? dragged.step : null });
  }

  drawOther({ subject, other, theirs, from }, i) {
    const { state } = this,
      drag = (f, step) => ({
        draggable: 'true',
        dragstart: (event) => {
          event.stopPropagation();
          event.dataTransfer.setData('text/plain', JSON.stringify({ from: f, step }));
        },
      });
    return el(
      'div',
      { class: 'lab-line' },
      this.sides.length > 1 && el('h4', {}, subject.name),
      i === 0 && el('p', { class: 'lab-asked' }, el('span', {}, 'Asked '), other.question),
      el(
        'div',
        { class: 'lab-said' },
        el('span', {}, 'Writes '),
        trace(subject, theirs.row, {
          key: `o${i}-`,
          label: `What ${subject.name} writes for the other problem`,
          stands: theirs.stands,
          choose: (at) => theirs.row.positions[at].kind === 'latent' && this.set({ from: theirs.row.positions[at].block }),
          chip: (f) => ({ ...drag(f, null), 'data-source': f === from ? 'true' : null }),
          latent: (f, step) => (state.steps === 'all' ? {} : drag(f, step)),
        }),
      ),
    );
  }

  drawChange({ subject, own, other, block, theirs, from }) {
    const { state } = this,
      { run } = subject,
      numbers = [...Array(run.modulus ?? 0).keys()].map((v) => [v, v]);
    const kinds = KINDS.filter(([kind]) => run.modulus || !['value', 'steer'].includes(kind));
    const value = () =>
      this.select(
        'value',
        state.value,
        numbers,
        (v) => this.set({ value: Number(v), ...(state.change === 'steer' ? {} : { change: 'value' }) }),
        { class: 'lab-inline' },
      );
    const extra = {
      value: () => value(),
      steer: () => [
        value(),
        el(
          'label',
          { class: 'lab-inline' },
          'how far ',
          el('input', {
            type: 'range',
            min: 0,
            max: 2,
            step: 0.25,
            value: state.dose,
            'data-key': 'dose',
            'aria-valuetext': `${state.dose} times the difference of the means`,
            input: ({ target }) => {
              state.dose = Number(target.value);
              target.nextSibling.textContent = ` ${state.dose} ×`;
              return this.draw(true);
            },
          }),
          ` ${state.dose} ×`,
        ),
      ],
      random: () => el('button', { type: 'button', 'data-key': 'noise', click: () => this.set({ seed: state.seed + 1 }) }, 'another draw'),
    };
    const radio = ([kind, text]) =>
      el(
        'div',
        { class: 'lab-kind' },
        el(
          'label',
          {},
          el('input', {
            type: 'radio',
            name: 'lab-change',
            value: kind,
            checked: kind === state.change,
            'data-key': kind,
            change: () => this.set({ change: kind }),
          }),
          ` ${text}`,
        ),
        kind === state.change && extra[kind]?.(),
      );
    const latents = own.latents[block]?.length ?? 0,
      steps = [['all', 'the whole thought'], ...Array.from({ length: latents }, (_, i) => [i, `step ${i + 1} only`])];
    const name = (stands, b) => {
      const h = stands.find((x) => x.block === b);
      return h ? `block ${b + 1}, ${h.said}` : `block ${b + 1}`;
    };
    redraw(
      this.change,
      el('fieldset', { class: 'lab-kinds' }, el('legend', {}, 'What enters instead'), kinds.map(radio)),
      own.latents.length > 1 &&
        this.select(
          'Which thought',
          block,
          own.latents.map((_, b) => [b, name(own.stands, b)]),
          (b) => this.set({ block: Number(b) }),
        ),
      latents > 1 &&
        state.change !== 'skip' &&
        this.select('Of it', state.steps === 'all' ? 'all' : state.steps[0], steps, (step) =>
          this.set({ steps: step === 'all' ? 'all' : [Number(step)], fromStep: null }),
        ),
      state.change === 'swap' && this.picker('The other problem', run, ['other', 'otherText'], other),
      state.change === 'swap' &&
        theirs.latents.length > 1 &&
        this.select(
          'Its thought',
          from,
          theirs.latents.map((_, b) => [b, name(theirs.stands, b)]),
          (b) => this.set({ from: Number(b) }),
        ),
    );
  }

  drawPredict({ subject, why, own, predicted }) {
    const { state, score } = this;
    if (why) return redraw(this.predict);
    // Only what was said before the answer was seen is counted.
    const guess = (value) => {
      if (value !== '?' && state.guess === null) {
        score.all++;
        if (value === this.sides[0].after.answer) score.right++;
      }
      return this.set({ guess: value });
    };
    // Where the question names two to choose from, these; of numbers, all.
    const choice = /(\S+) or (\S+) :$/u.exec(this.sides[0].problem.question),
      options = choice ? choice.slice(1) : [...Array(subject.run.modulus ?? 0).keys()].map(String);
    const button = (value, text) =>
      el(
        'button',
        {
          type: 'button',
          'data-key': `guess ${value}`,
          class: 'lab-guess',
          'aria-pressed': state.guess === value ? 'true' : 'false',
          click: () => guess(value),
        },
        text,
      );
    return redraw(
      this.predict,
      el(
        'p',
        {},
        state.guess === null ? `Without the change it answers ${own.answer ?? 'nothing'}. What do you expect now?` : 'You expected:',
      ),
      el(
        'div',
        { class: 'lab-guesses', role: 'group', 'aria-label': 'The answer that you expect' },
        options.map((value) => button(value, value)),
        button('?', options.length ? 'just show me' : 'show me'),
      ),
      score.all > 0 && el('p', { class: 'note' }, `You have foreseen ${score.right} of ${score.all} answers of the model.`),
    );
  }

  drawResult(side, i) {
    const { state } = this,
      { subject, own, after, predicted, why } = side;
    if (why) return el('p', { class: 'lab-warn' }, this.sides.length > 1 ? `${subject.name}: ` : '', why);
    const tile = (name, value, kind, note) =>
      el('div', { class: `lab-tile ${kind}` }, el('span', {}, name), el('b', {}, value ?? 'none'), el('small', {}, note));
    const hit = predicted !== null && after.answer === predicted,
      same = after.answer === own.answer;
    const verdict = predicted === null ? '' : hit ? 'as predicted' : same ? 'unchanged' : 'neither';
    const touched = (b, step) => after.made.some((m) => m.block === b && m.step === step);
    return el(
      'div',
      { class: 'lab-line' },
      this.sides.length > 1 && el('h4', {}, subject.name),
      el(
        'div',
        { class: 'lab-tiles' },
        tile('as it is', own.answer, '', own.right ? 'right' : ''),
        tile(
          'with the change',
          after.answer,
          `new ${hit ? 'hit' : ''}`,
          after.row.end === 'non_finite' ? 'its logits are not finite' : verdict || (same ? 'unchanged' : 'changed'),
        ),
        predicted !== null && tile('arithmetic predicts', predicted, hit ? 'hit' : '', hit ? '✓ the same' : 'another answer'),
        state.guess !== '?' && tile('you expected', state.guess, '', state.guess === after.answer ? '✓ the same' : 'another answer'),
      ),
      i === 0 && el('p', { class: 'lab-why' }, this.reason(side)),
      el(
        'div',
        { class: 'lab-said' },
        el('span', {}, 'Now writes '),
        trace(subject, after.row, {
          key: `c${i}-`,
          label: `What ${subject.name} writes with the change`,
          at: this.at({ subject, row: after.row }),
          against: own.row,
          touched,
          choose: (at) => this.set({ at }),
        }),
      ),
    );
  }

  /** Why arithmetic predicts what it predicts. */
  reason({ subject, problem, goal, value, predicted, donor, own }) {
    const { state } = this,
      { modulus } = subject.run;
    if (predicted === null) {
      if (!modulus && state.change === 'swap')
        return 'Steps of this task hold no numbers, so there is no arithmetic to predict from: look whether the answer changes.';
      if (['swap', 'value', 'steer'].includes(state.change))
        return own.right
          ? 'What these blocks stand for is not known, so nothing is predicted.'
          : 'The model’s own answer is wrong here, so what its block stands for is not known and nothing is predicted.';
      return {
        zero: 'Zeros say nothing: if the answer stays, the block did not matter here.',
        random: 'Noise says nothing: if the answer stays, the block did not matter here.',
        mean: 'The mean keeps what all thoughts have in common and takes away what this problem put there.',
        own: 'If the answer stays, this thought was a word in disguise: its most probable token does as well.',
        skip: 'Without a block the model may write the step out, as it also learnt to.',
      }[state.change];
    }
    const all = values(problem.plan, { step: goal.step, value }),
      { steps, names } = problem.plan;
    const rest = steps
      .slice(goal.step + 1)
      .map(
        ({ name, op, left, right }, i) => `${name} = ${all[left]} ${op} ${right.number ?? all[right.variable]} = ${all[goal.step + 2 + i]}`,
      );
    const from = donor
      ? ` (taken from problem ${donor.problem + 1}, where a block holds it)`
      : state.change === 'steer'
        ? ' (pushed along the difference of the two values’ mean thoughts)'
        : '';
    return `The block stands for ${names[goal.step + 1]} = ${goal.value}; what was put in stands for ${value}${from}. If ${names[goal.step + 1]} were ${value}${rest.length ? `, then ${rest.join(', ')}` : ''}: the answer would be ${predicted}.${state.steps === 'all' ? '' : ' That holds for the whole thought; you changed one step of it.'}`;
  }

  /** Rows that are shown, with what was done to them. */
  parts() {
    return this.sides.flatMap((side) => [
      { name: side.subject.name, decode: 'normal', subject: side.subject, row: side.own.row },
      ...(side.after && this.state.guess !== null
        ? [{ name: side.subject.name, decode: this.state.change, subject: side.subject, row: side.after.row }]
        : []),
    ]);
  }

  drawInside() {
    const what = { normal: 'as it is' };
    return el(
      'div',
      { class: 'lab-views' },
      el('p', { class: 'note' }, `Choose a place by clicking a word above (arrow keys move along). Pink marks latent steps.`),
      this.parts().map(({ name, decode: how, subject, row }) => {
        const title = `${this.sides.length > 1 ? `${name}, ` : ''}${what[how] ?? 'with the change'}`,
          at = this.at({ subject, row }),
          position = row.positions[at];
        const shownAt =
          position.kind === 'latent'
            ? row.positions.filter((p) => p.kind === 'latent' && p.block === position.block)
            : position.seen
              ? [position]
              : [];
        const block =
          shownAt.length && position.kind !== 'latent'
            ? row.positions.filter((p) => p.kind === 'latent' && p.block === this.sides[0].block)
            : [];
        return el(
          'section',
          { class: 'lab-view' },
          el('h4', {}, `${title}: ${wordOf(subject.words, position)}`),
          lensTable(subject, [...block, ...shownAt], `What each layer would say, ${title}`),
          probabilities(subject, position, 'The next token'),
          el('h4', {}, 'Where every head looks from here'),
          el(
            'div',
            { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `Heads, ${title}` },
            heads(subject, row, at, `Where every head looks from place ${at + 1}, ${title}`),
          ),
          el('h4', {}, 'p(<swi>) before each word, p(</swi>) after each latent step'),
          el(
            'div',
            { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `Switching, ${title}` },
            switching(subject, row, `p(<swi>) along the text, ${title}`),
          ),
        );
      }),
    );
  }

  drawTake({ subject, problem, spec, after }) {
    const { run } = subject,
      made = this.state.guess === null ? [] : (after?.made ?? []);
    const how = command(
      {
        run: run.path,
        phase: subject.phase,
        text: problem.prompt,
        kind: this.state.guess === null ? 'none' : this.state.change,
        block: spec?.block,
        steps: this.state.steps,
      },
      made,
    );
    const link = `${location.href.split('#')[0]}${this.address()}`,
      button = (text, act) => el('button', { type: 'button', 'data-key': text, click: act }, text);
    const copy = (text) => (event) => {
      const say = (t) => (event.target.textContent = t);
      navigator.clipboard
        ? navigator.clipboard.writeText(text).then(
            () => say('copied'),
            () => say('select it and copy'),
          )
        : say('select it and copy');
    };
    const figure = () => {
      const { subject: of, row } = this.parts().at(-1);
      return [heads(of, row, this.at({ subject: of, row }), 'heads'), switching(of, row, 'switching')];
    };
    const drawn = () =>
      figure()
        .filter((svg) => svg.namespaceURI.endsWith('svg'))
        .forEach((svg, i) => save(`${['heads', 'switching'][i]}.svg`, standalone(svg), 'image/svg+xml'));
    return el(
      'div',
      { class: 'lab-take' },
      this.inAddress && el('p', {}, 'This view: ', el('code', {}, link), ' ', button('Copy the link', copy(link))),
      el(
        'p',
        {},
        button('Rows as CSV', () => save('positions.csv', csv(this.parts()), 'text/csv')),
        button('Figures as SVG', drawn),
        how.file && button(`The file ${how.file}`, () => save(how.file, swapFile(made), 'application/octet-stream')),
      ),
      el('p', {}, `The same from the command line${how.about ? ` (it ${how.about})` : ''}:`),
      el('pre', {}, how.line),
      how.file && el('p', { class: 'note' }, `It reads ${how.file}: save it above.`),
      button('Copy the command', copy(how.line)),
    );
  }
}
