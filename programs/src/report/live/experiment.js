'use strict';
// What can be done to a latent block, what arithmetic says the answer must then be, and the command that does the same. Knows decoded
// rows (decoder.js); nothing of the page.

// ---- Arithmetic: the task `chains` (src/tasks/chains.rs) ---------------------------------------------------------------------------

const OPERATIONS = { '+': (a, b) => a + b, '-': (a, b) => a - b, '*': (a, b) => a * b };

/** A question `a = 5 ; j = a + 4 ; ? j :` as a plan, or `{ wrong }`: what is wrong with it, for its reader. */
function chain(question, modulus) {
  const parts = question
    .replace('<bos>', ' ')
    .replace(/:\s*$/u, '')
    .split(';')
    .map((part) => part.trim().split(/\s+/u));
  const asked = parts.pop();
  if (asked.length !== 2 || asked[0] !== '?') return { wrong: 'It must end with the question, as in “; ? c :”.' };
  const names = [],
    steps = [];
  let start = null;
  const place = (word) => names.indexOf(word);
  const isNumber = (word) => /^\d+$/u.test(word) && Number(word) < modulus;
  for (const [number, words] of parts.entries()) {
    const [name, equals, left, op, right, ...rest] = words;
    const line = words.join(' ');
    if (equals !== '=' || rest.length || !/^[a-z]$/u.test(name)) return { wrong: `“${line}” is not of the form “c = b + 4”.` };
    if (place(name) >= 0) return { wrong: `“${name}” is given twice.` };
    if (number === 0) {
      if (op !== undefined || !isNumber(left)) return { wrong: `It begins with a number below ${modulus}, as in “a = 5”.` };
      start = Number(left);
    } else {
      if (!(op in OPERATIONS)) return { wrong: `“${line}” is not of the form “c = b + 4”.` };
      if (place(left) < 0) return { wrong: `“${line}” works on “${left}”, which no line before it gives.` };
      if (!isNumber(right) && place(right) < 0) return { wrong: `“${right}” is neither a number below ${modulus} nor given before.` };
      steps.push({ name, op, left: place(left), right: isNumber(right) ? { number: Number(right) } : { variable: place(right) } });
    }
    names.push(name);
  }
  if (!steps.length) return { wrong: 'It needs a line that computes something, as in “; b = a + 4”.' };
  if (place(asked[1]) < 0) return { wrong: `It asks for “${asked[1]}”, which no line gives.` };
  return { names, start, steps, asked: place(asked[1]), modulus };
}

/** Start value and the result of every step, with the result of one step replaced. */
function values(plan, forced = {}) {
  const all = [plan.start];
  plan.steps.forEach(({ op, left, right }, step) => {
    const result = OPERATIONS[op](all[left], right.number ?? all[right.variable]);
    all.push(forced.step === step ? forced.value : ((result % plan.modulus) + plan.modulus) % plan.modulus);
  });
  return all;
}

const answerIf = (plan, forced) => String(values(plan, forced)[plan.asked]);

/** The words of the worked solution, and of each step where its clause stands in them. */
function solution(plan) {
  const all = values(plan),
    words = [];
  const clauses = plan.steps.map(({ name, op, left, right }, step) => {
    words.push(name, '=', all[left], op, right.number ?? all[right.variable], '=', all[step + 1], ';');
    return { start: words.length - 6, end: words.length - 1 };
  });
  words.push('#', all[plan.asked]);
  return { words: words.map(String), clauses };
}

/** Which step of the solution each block of a decoded row stands for: `[{ block, step, value }]`, as long as its text follows the
 * solution (`known_value` of src/experiments reads rows in the same way). */
function held(plan, words, positions) {
  const { words: gold, clauses } = solution(plan),
    all = values(plan),
    found = [];
  const segments = [[]];
  for (const { kind, token } of positions) {
    if (kind === 'swi') segments.push([]);
    else if (kind === 'text' && !words.special.has(words.words[token])) segments.at(-1).push(words.words[token]);
  }
  let at = 0,
    until = null;
  for (const [block, said] of segments.entries()) {
    if (until !== null && said.length) {
      const places = [until, ...Array.from({ length: until - at }, (_, i) => at + i)];
      const place = places.find((p) => gold[p] === said[0]);
      if (place === undefined) break;
      at = place;
    }
    until = null;
    if (said.some((word, i) => gold[at + i] !== word)) break;
    at += said.length;
    if (block + 1 < segments.length) {
      const step = clauses.findIndex(({ start }) => start === at);
      if (step < 0) break;
      found.push({ block, step, value: all[step + 1] });
      until = clauses[step].end;
    }
  }
  return found;
}

// ---- Changes ------------------------------------------------------------------------------------------------------------------------

/** Inputs of a decoded row's latents: `[block][step]`. */
function latentsOf(row) {
  const blocks = [];
  row.positions.filter((p) => p.kind === 'latent').forEach((p) => (blocks[p.block] ??= []).push(p.input));
  return blocks;
}

/** Uniform in (0, 1), the same for the same seed (mulberry32). */
function uniform(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return (((t ^ (t >>> 14)) >>> 0) + 0.5) / 4294967296;
  };
}

const length = (x) => Math.sqrt(x.reduce((sum, v) => sum + v * v, 0));

/** A random direction of the same norm, one for each place and seed. */
function randomLike(own, block, step, seed) {
  const draw = uniform(((seed * 31 + block) * 31 + step) * 2654435761);
  const raw = own.map(() => Math.sqrt(-2 * Math.log(draw())) * Math.cos(2 * Math.PI * draw()));
  const by = length(own) / length(raw);
  return raw.map((x) => x * by);
}

/** Mean states of the first held-out problems that a model answers right: by step (`mean`), and by value and step (`of`, with how
 * many blocks each rests on in `count`). A generator: it pauses after every problem, so that a page stays alive. */
function* states(subject, problems, modulus, most = 100) {
  const all = [],
    by = new Map();
  for (const { question, prompt } of problems.slice(0, most)) {
    yield;
    const row = decode(subject, prompt),
      plan = modulus ? chain(question, modulus) : { wrong: true };
    const blocks = latentsOf(row);
    blocks.forEach((steps) => steps.forEach((state, step) => (all[step] ??= []).push(state)));
    if (plan.wrong || answerOf(subject.words, row.positions) !== answerIf(plan)) continue;
    for (const { block, value } of held(plan, subject.words, row.positions)) {
      if (!by.has(value)) by.set(value, []);
      blocks[block]?.forEach((state, step) => (by.get(value)[step] ??= []).push(state));
    }
  }
  const mean = (rows) => rows[0].map((_, i) => rows.reduce((sum, row) => sum + row[i], 0) / rows.length);
  const means = new Map([...by].map(([value, steps]) => [value, steps.map(mean)]));
  return { mean: all.map(mean), of: means, count: new Map([...by].map(([value, steps]) => [value, steps[0].length])) };
}

/** Changes that replace a state, by name: `(own, block, step, what) → input`, null where there is nothing to put there. `what` holds
 * what a change needs: `donor` (states by step), `states` (of [`states`]), `value`, `from`, `dose`, `seed`, `subject`. */
const CHANGES = {
  swap: (own, block, step, { donor }) => donor?.[step] ?? null,
  zero: (own) => new Float32Array(own.length),
  random: (own, block, step, { seed }) => randomLike(own, block, step, seed ?? 1),
  mean: (own, block, step, { states: bank }) => bank?.mean[step] ?? null,
  own: (own, block, step, { subject: { model } }) => model.embed(read(model.unembed(own)).drawn),
  steer: (own, block, step, { states: bank, value, from, dose }) => {
    const [to, away] = [bank?.of.get(value)?.[step], bank?.of.get(from)?.[step]];
    return to && away ? own.map((x, i) => x + dose * (to[i] - away[i])) : null;
  },
};
// `value` is `swap` with a donor that holds the value.
CHANGES.value = CHANGES.swap;

/** The row decoded again with a change at some steps of one block. `made` lists what entered where: `[{ block, step, own, input }]`. */
function changed(subject, prompt, { kind, block, steps, what = {} }) {
  const made = [];
  if (kind === 'skip') return { row: decode(subject, prompt, { skipFrom: block }), made };
  const change = (b, step, own) => {
    if (b !== block || (steps !== 'all' && !steps.includes(step))) return null;
    const input = CHANGES[kind](own, block, step, { ...what, subject });
    if (input) made.push({ block, step, own, input });
    return input;
  };
  return { row: decode(subject, prompt, { change }), made };
}

/** A held-out problem whose row, answered right, has a block that holds `value`; of as many latents as are to be replaced. */
function donorWith(value, { subject, problems, modulus, except, latents }) {
  for (const [number, problem] of problems.entries()) {
    if (number === except) continue;
    const plan = chain(problem.question, modulus);
    if (plan.wrong || !values(plan).slice(1).includes(value)) continue;
    const row = decode(subject, problem.prompt);
    if (answerOf(subject.words, row.positions) !== answerIf(plan)) continue;
    const states = latentsOf(row);
    const found = held(plan, subject.words, row.positions).find((h) => h.value === value && (states[h.block]?.length ?? 0) >= latents);
    if (found) return { problem: number, block: found.block, row };
  }
  return null;
}

// ---- The same from the command line ---------------------------------------------------------------------------------------------------

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** A safetensors file of what was put in, in the form of `probe generate --record`: `--hook …=swap:FILE` reads it. */
function swapFile(made) {
  const width = made[0].input.length,
    name = 'latent.hook_injected';
  const metadata = {
    positions: JSON.stringify({ [name]: made.map((_, i) => i) }),
    steps: JSON.stringify([made.map(({ block, step }) => `latent[${block + 1},${step + 1}]`)]),
  };
  const head = {
    __metadata__: metadata,
    [name]: { dtype: 'F32', shape: [1, made.length, width], data_offsets: [0, made.length * width * 4] },
  };
  const text = JSON.stringify(head),
    header = new TextEncoder().encode(text.padEnd(Math.ceil(text.length / 8) * 8));
  const file = new Uint8Array(8 + header.length + made.length * width * 4),
    view = new DataView(file.buffer);
  view.setBigUint64(0, BigInt(header.length), true);
  file.set(header, 8);
  let at = 8 + header.length;
  for (const { input } of made)
    for (const x of input) {
      view.setFloat32(at, x, true);
      at += 4;
    }
  return file;
}

/** The command that makes the same, and the file that it needs, if any. */
function command({ run, phase, text, kind, block, steps }, made) {
  const base = `cargo run --bin probe -- generate ${run} --phase ${phase} --prompt ${quoted(text)}`;
  if (kind === 'skip')
    return {
      line: `cargo run --bin intervene -- ${run} --phase ${phase} --modes normal,skip`,
      about: 'skips every block of every problem; one block of one problem cannot be named there',
    };
  if (!made.length) return { line: base };
  const which = steps === 'all' ? '*' : null;
  const places = which ? [`latent[${block + 1},*]`] : made.map(({ step }) => `latent[${block + 1},${step + 1}]`);
  const to = kind === 'zero' ? 'zero' : `swap:${FILE}`;
  const hooks = places.map((place) => ` --hook ${quoted(`latent.hook_injected@${place}=${to}`)}`).join('');
  return kind === 'zero' ? { line: base + hooks } : { line: base + hooks, file: FILE };
}

const FILE = 'change.safetensors';

if (typeof module !== 'undefined') {
  Object.assign(globalThis, require('./decoder.js'));
  module.exports = { CHANGES, answerIf, chain, changed, command, donorWith, held, latentsOf, solution, states, swapFile, values };
}
