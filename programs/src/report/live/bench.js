'use strict';
// What is chosen on the laboratory's bench (it stands in the address) and what follows from it: rows, changes, predictions. Everything
// is computed here and now by decoder.js. Knows nothing of how it is drawn: that is lab.js.

const KINDS = [
  ['swap', 'the thought of the other problem'],
  ['value', 'a thought of this value:'],
  ['zero', 'zeros: nothing'],
  ['random', 'noise as long as it was'],
  ['mean', 'the mean of all thoughts'],
  ['own', 'the word that it would say'],
  ['steer', 'the same, pushed towards'],
  ['skip', 'no block: <swi> is masked'],
];
/** What is in an address, and what it is where it is not there. */
const FIRST = {
  model: null,
  beside: '',
  problem: null,
  text: '',
  other: null,
  otherText: '',
  block: 0,
  from: 0,
  steps: 'all',
  fromStep: null,
  change: 'swap',
  value: null,
  dose: 1,
  seed: 1,
  at: null,
  guess: null,
};
/** A choice of these asks for a new prediction. */
const NEW = ['model', 'problem', 'text', 'other', 'otherText', 'block', 'from', 'steps', 'fromStep', 'change', 'value'];

class Bench {
  /** `blob(id)` are the weights of a model in base64; `address`: whether the view stands in the page's address. */
  constructor(data, blob, address) {
    Object.assign(this, { data, blob, inAddress: address, state: { ...FIRST }, touched: false });
    [this.subjects, this.rows, this.banks, this.donors] = [new Map(), new Map(), new Map(), new Map()];
    this.models = data.runs.flatMap((run) => run.models.map((model) => ({ run, model, name: `${run.name}/${model.phase}` })));
  }

  // ---- What is chosen ----

  /** Takes the state from the address. */
  open() {
    const given = new URLSearchParams(this.inAddress && location.hash.startsWith('#try?') ? location.hash.slice(5) : '');
    const state = { ...FIRST };
    for (const key of Object.keys(FIRST)) {
      const text = given.get(key);
      if (text === null) continue;
      const numeric = typeof FIRST[key] === 'number' || ['problem', 'other', 'fromStep', 'value', 'at'].includes(key);
      state[key] = key === 'steps' && text !== 'all' ? text.split(',').map(Number) : numeric ? Number(text) : text;
      if (numeric && !Number.isFinite(state[key])) state[key] = FIRST[key];
    }
    const known = (name) => this.models.some((m) => m.name === name);
    if (!known(state.model)) state.model = this.models[0].name;
    if (!known(state.beside)) state.beside = '';
    if (!KINDS.some(([kind]) => kind === state.change)) state.change = 'swap';
    this.state = state;
    return this.draw();
  }

  set(changes) {
    if (Object.keys(changes).some((key) => NEW.includes(key) && changes[key] !== this.state[key])) this.state.guess = null;
    Object.assign(this.state, changes);
    return this.draw();
  }

  address() {
    const now = new URLSearchParams();
    for (const [key, value] of Object.entries(this.state))
      if (value !== FIRST[key] && value !== null && value !== '') now.set(key, String(value));
    return `#try?${now}`;
  }

  // ---- What is computed ----

  of(name) {
    return this.models.find((m) => m.name === name);
  }

  subject(name) {
    const make = async () => {
      const { run, model } = this.of(name);
      const floats = fromPlanes(await inflate(this.blob(model.data)));
      const words = new Words(run.tokenizer);
      return {
        name,
        run,
        phase: model.phase,
        words,
        model: new Decoder(model.config, tensorsOf(model.index, floats)),
        reasoning: model.reasoning ?? SWITCH,
        stop: model.stop,
      };
    };
    if (!this.subjects.has(name)) this.subjects.set(name, make());
    return this.subjects.get(name);
  }

  /** A held-out problem by its number, or one that was typed. */
  problem(run, number, text) {
    const question = text || run.problems[number],
      prompt = run.prefix + question;
    return { number: text ? null : number, question, prompt, plan: run.modulus ? chain(question, run.modulus) : { wrong: '' } };
  }

  /** How a checkpoint answers a problem. */
  row(subject, problem) {
    const key = `${subject.name} ${problem.prompt}`;
    if (!this.rows.has(key)) {
      const row = decode(subject, subject.words.encode(problem.prompt)),
        answer = answerOf(subject.words, row.positions);
      const gold = problem.plan.wrong === undefined ? answerIf(problem.plan) : (subject.run.answers[problem.number] ?? null),
        right = gold === null ? null : answer === gold;
      const stands = problem.plan.wrong === undefined ? held(problem.plan, subject.words, row.positions) : [];
      stands.forEach((h) => (h.said = `${problem.plan.names[h.step + 1]} = ${h.value}`));
      this.rows.set(key, { row, answer, gold, right, stands, latents: latentsOf(row) });
    }
    return this.rows.get(key);
  }

  problems(subject) {
    const { run } = subject;
    subject.problems ??= run.problems.map((question) => ({ question, prompt: subject.words.encode(run.prefix + question) }));
    return subject.problems;
  }

  /** Mean states, read while the page stays alive. */
  async bank(subject) {
    if (!this.banks.has(subject.name)) {
      const reading = states(subject, this.problems(subject), subject.run.modulus);
      this.banks.set(
        subject.name,
        (async () => {
          for (let until = performance.now() + 30; ;) {
            const next = reading.next();
            if (next.done) return next.value;
            if (performance.now() > until) {
              await new Promise((go) => setTimeout(go));
              until = performance.now() + 30;
            }
          }
        })(),
      );
    }
    return this.banks.get(subject.name);
  }

  /** Fills in what the address leaves open: a problem with a block, and another one whose block leads elsewhere. */
  choose(subject) {
    const { state } = this,
      { run } = subject,
      all = [...run.problems.keys()];
    // A large model is not kept at it for long: what has been found by then is taken.
    const until = performance.now() + 1500,
      some = { find: (holds) => all.slice(0, 60).find((n) => performance.now() < until && holds(n)) };
    const of = (number, text) => this.row(subject, this.problem(run, number, text));
    const blocks = (number) => {
      const { right, stands, latents } = of(number);
      return right ? (run.modulus ? stands.length : latents.length) : 0;
    };
    if (state.problem === null && !state.text) state.problem = some.find((n) => blocks(n) === 2) ?? some.find((n) => blocks(n) > 0) ?? 0;
    const { plan } = this.problem(run, state.problem, state.text),
      own = of(state.problem, state.text);
    const goal = own.right ? own.stands.find((h) => h.block === state.block) : null;
    if (state.other === null && !state.otherText) {
      // One whose thought leads to an answer that is neither of the two: whoever sees it come sees that the thought was computed with.
      const leads = (n, all) => {
        const there = of(n),
          thought = n !== state.problem && there.right && there.stands.find((h) => h.block === state.from);
        const answer = goal && thought && answerIf(plan, { step: goal.step, value: thought.value });
        return answer && answer !== own.answer && (!all || ![there.answer, String(thought.value)].includes(answer));
      };
      state.other =
        some.find((n) => goal && blocks(n) === 1 && leads(n, true)) ??
        some.find((n) => (goal ? leads(n, false) : n !== state.problem && blocks(n) > 0)) ??
        all.find((n) => n !== state.problem) ??
        0;
    }
    if (state.value === null && run.modulus) {
      const other = (v) => v !== goal?.value && (!goal || answerIf(plan, { step: goal.step, value: v }) !== own.answer);
      state.value = [...Array(run.modulus).keys()].find(other) ?? 0;
    }
  }

  /** One checkpoint: its answer, the change, the answer after it, and what arithmetic predicts. */
  async side(name) {
    const { state } = this,
      subject = await this.subject(name),
      { run } = subject;
    if (state.problem >= run.problems.length) state.problem = null;
    if (state.other >= run.problems.length) state.other = null;
    if (name === state.model) this.choose(subject);
    const problem = this.problem(run, state.problem, state.text),
      other = this.problem(run, state.other, state.otherText);
    const own = this.row(subject, problem),
      theirs = this.row(subject, other),
      count = own.latents.length;
    const block = Math.min(state.block, Math.max(count - 1, 0)),
      from = Math.min(state.from, Math.max(theirs.latents.length - 1, 0));
    const side = {
      subject,
      problem,
      other,
      own,
      theirs,
      block,
      from,
      donor: null,
      goal: own.right ? own.stands.find((h) => h.block === block) : null,
      value: null,
    };
    if (!count)
      return {
        ...side,
        why: 'The model opens no block here: there is no thought to change. Choose another problem or another checkpoint.',
      };
    const what = { dose: state.dose, seed: state.seed, value: state.value, from: side.goal?.value };
    if (state.change === 'swap') {
      what.donor = theirs.latents[from];
      if (!what.donor) return { ...side, why: 'The other problem has no block: choose one that has.' };
      if (state.fromStep !== null && state.steps !== 'all')
        what.donor = Object.assign([], { [state.steps[0]]: what.donor[state.fromStep] });
      side.value = theirs.right ? (theirs.stands.find((h) => h.block === from)?.value ?? null) : null;
    } else if (state.change === 'value') {
      const key = `${name} ${state.value} ${problem.prompt} ${own.latents[block].length}`;
      if (!this.donors.has(key))
        this.donors.set(
          key,
          donorWith(state.value, {
            subject,
            problems: this.problems(subject),
            modulus: run.modulus,
            except: problem.number,
            latents: own.latents[block].length,
          }),
        );
      side.donor = this.donors.get(key);
      if (!side.donor) return { ...side, why: `No block of a held-out problem stands for ${state.value}.` };
      what.donor = latentsOf(side.donor.row)[side.donor.block];
      side.value = state.value;
    } else if (state.change === 'steer' || state.change === 'mean') {
      if (!this.banks.has(name)) this.waiting('Reading the thoughts of 100 problems …');
      what.states = await this.bank(subject);
      if (state.change === 'steer') {
        const few = [state.value, side.goal?.value].find((v) => v === undefined || !what.states.of.has(v));
        if (!side.goal || few !== undefined)
          return {
            ...side,
            why: side.goal
              ? `No block of the first 100 problems stands for ${few}.`
              : 'What this block stands for is not known: there is no direction to push it along.',
          };
        side.value = state.value;
      }
    }
    const spec = { kind: state.change, block, steps: state.steps, what },
      { row, made } = changed(subject, subject.words.encode(problem.prompt), spec);
    const predicted = side.goal && side.value !== null ? answerIf(problem.plan, { step: side.goal.step, value: side.value }) : null;
    const stands =
      problem.plan.wrong === undefined ? held(problem.plan, subject.words, row.positions).map((h) => ({ ...h, said: '' })) : [];
    return { ...side, spec, after: { row, made, answer: answerOf(subject.words, row.positions), stands }, predicted };
  }

  /** The chosen place in a row; the one before the answer where none is chosen. */
  at({ subject, row }) {
    const { positions } = row,
      { at } = this.state;
    return at === null
      ? Math.max(
          positions.findLastIndex((p) => subject.words.words[p.token] === '#'),
          0,
        )
      : Math.min(at, positions.length - 1);
  }
}
