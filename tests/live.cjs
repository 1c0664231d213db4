// The page's decoder in Node.js, against the fixtures: `node tests/live.cjs PAGE FOLDER` (tests/live.rs calls it). Prints one line per
// check and exits with code 1 if one fails. Writes to FOLDER the cases that `probe generate` then repeats.
'use strict';
const crypto = require('crypto');
const fs = require('fs');
const path = require('path');

const LIVE = path.join(__dirname, '..', 'programs', 'src', 'report', 'live'), FIXTURES = path.join(__dirname, '..', 'fixtures');
const { CHANGES, answerIf, chain, changed, command, donorWith, held, latentsOf, states, swapFile, values } = require(path.join(LIVE, 'experiment.js'));
const { Decoder, Words, answerOf, decode, fromPlanes, inflate, ruleOf, tensorsOf } = require(path.join(LIVE, 'decoder.js'));
const { csv, different, shown } = require(path.join(LIVE, 'draw.js'));
const [page, folder] = process.argv.slice(2);
let failed = 0;

function check(name, holds, detail) {
  if (!holds) failed++;
  console.log(`${holds ? 'ok' : 'FAILED'} ${name}: ${detail}`);
}

/** Tensors of a safetensors file. */
function tensors(file) {
  const bytes = fs.readFileSync(file), length = Number(bytes.readBigUInt64LE(0)), found = new Map();
  const { __metadata__, ...index } = JSON.parse(bytes.subarray(8, 8 + length));
  for (const [name, { dtype, shape, data_offsets: [from, until] }] of Object.entries(index)) {
    const { buffer } = new Uint8Array(bytes.subarray(8 + length + from, 8 + length + until));
    found.set(name, { shape, data: dtype === 'I64' ? Array.from(new BigInt64Array(buffer), Number) : new Float32Array(buffer) });
  }
  return found;
}

const json = (file) => JSON.parse(fs.readFileSync(file, 'utf8'));

/** A committed checkpoint. */
function subject(run, phase) {
  const dir = path.join(FIXTURES, run, phase, 'checkpoint'), config = json(path.join(dir, 'config.json'));
  return { name: `${run}/${phase}`, model: new Decoder(config, tensors(path.join(dir, 'model.safetensors'))), words: new Words(json(path.join(dir, 'tokenizer.json'))),
    reasoning: json(path.join(dir, 'reasoning.json')), stop: [config.eos_token_id].flat() };
}

/** Rows of a CSV file by their columns. */
function rows(file) {
  const [head, ...lines] = [...fs.readFileSync(file, 'utf8').matchAll(/(?:(?:"(?:[^"]|"")*"|[^",\n]*)(?:,|\n))+?(?<=\n)/gu)].map(([line]) =>
    [...line.matchAll(/("(?:[^"]|"")*"|[^",\n]*)[,\n]/gu)].map(([, cell]) => (cell.startsWith('"') ? cell.slice(1, -1).replaceAll('""', '"') : cell)));
  return lines.map((line) => Object.fromEntries(head.map((name, i) => [name, line[i]])));
}

function families() {
  for (const name of ['qwen3_tied', 'qwen3_untied', 'qwen2_tied', 'qwen2_untied', 'llama_gqa', 'llama3_scaled', 'gemma_mqa', 'mistral_gqa']) {
    const dir = path.join(FIXTURES, 'tiny', name), model = new Decoder(json(path.join(dir, 'config.json')), tensors(path.join(dir, 'model.safetensors')));
    const reference = tensors(path.join(dir, 'reference.safetensors'));
    let [most, seenAll, compared] = [0, 0, 0];
    for (let row = 0; row < 3; row++) {
      const cache = model.cache(), of = (hook) => reference.get(`row${row}.${hook}`);
      of('ids').data.forEach((id, position, ids) => {
        const seen = {}, logits = model.unembed(model.forward(model.embed(id), cache, seen)), { data } = of('logits');
        logits.forEach((x, i) => { most = Math.max(most, Math.abs(x - data[position * logits.length + i])); compared++; });
        seen.resid.slice(1).forEach((stream, layer) => stream.forEach((x, i) => (seenAll = Math.max(seenAll, Math.abs(x - of(`blocks.${layer}.hook_resid_post`).data[position * stream.length + i])))));
        seen.pattern.forEach((heads, layer) => heads.forEach((weights, head) => weights.forEach((w, key) =>
          (seenAll = Math.max(seenAll, Math.abs(w - of(`blocks.${layer}.attn.hook_pattern`).data[(head * ids.length + position) * ids.length + key]))))));
      });
    }
    check(`family ${name}`, most < 1e-4 && seenAll < 1e-4 && compared > 1000, `${compared} logits within ${most.toExponential(1)}, streams and patterns within ${seenAll.toExponential(1)}`);
  }
}

/** Decodes the committed traces of a checkpoint again. */
function traces(run, phase) {
  const by = new Map(), of = subject(run, phase);
  rows(path.join(FIXTURES, '..', 'reports', run, `positions-${phase}.csv`)).forEach((row) => by.set(row.problem, [...(by.get(row.problem) ?? []), row]));
  let [same, most] = [0, 0];
  for (const told of by.values()) {
    const { positions } = decode(of, of.words.encode(told[0].prompt));
    if (positions.length === told.length && positions.every((p, i) => String(p.token) === told[i].id && p.kind === told[i].kind)) same++;
    positions.forEach((p, i) => [['logprob', p.logprob], ['entropy', p.entropy], ['p_swi', p.pSwi], ['p_exit', p.pExit]].forEach(([name, value]) => {
      if (told[i]?.[name] && value !== undefined && value !== null) most = Math.max(most, Math.abs(value - Number(told[i][name])));
    }));
  }
  check(`traces ${run}/${phase}`, same === by.size && same === 24 && most < 1e-4, `${same} of ${by.size} token for token, numbers within ${most.toExponential(1)}`);
}

/** The rules of src/latent/controller.rs and rules.rs, on the cases of their tests. */
function rules() {
  const rule = (blocks, k_min = 2, k_cap = 4) => ruleOf({ blocks, k_min, k_cap });
  const closes = (of, step, exit = false, more = {}) => of.closes({ step, exit, entropies: [0], reference: 0, drawn: 0, ...more });
  const learnt = rule({ rule: 'learnt' }), thinking = rule({ rule: 'thinking', limit: 3 }), after = rule({ rule: 'after_prompt', steps: 3 });
  const text = (visible, blocks, more = {}) => ({ visible, blocks, since: 0, entropy: 1, reference: 1, answering: false, ...more });
  const swi = rule({ rule: 'swireasoning', window: 3, budget: 2, limit: 5, end: 9 }), soft = rule({ rule: 'soft_thinking', certain: 0.1, patience: 2, limit: 4, end: 9 });
  const told = [
    [closes(learnt, 1, true), null], [closes(learnt, 2, true), 'drawn'], [closes(learnt, 3), null], [closes(learnt, 4), 'forced'],
    [closes(thinking, 1, true), 'drawn'], [closes(thinking, 3), 'forced'], [thinking.opens(text(0, 0)), true], [thinking.opens(text(0, 1)), false],
    [closes(after, 2, true), null], [closes(after, 3), 'forced'], [after.opens(text(1, 1)), false], [rule({ rule: 'after_prompt', steps: 0 }).opens(text(0, 0)), false],
    [swi.opens(text(0, 0)), true], [swi.opens(text(4, 1, { since: 3, entropy: 1.1 })), true], [swi.opens(text(4, 1, { since: 2, entropy: 1.1 })), false],
    [swi.opens(text(9, 2, { since: 3, entropy: 1.1 })), false], [swi.opens(text(4, 1, { since: 3, entropy: 1.1, answering: true })), false],
    [closes(swi, 1, false, { entropies: [1], reference: 1 }), null], [closes(swi, 2, false, { entropies: [1.2, 0.9], reference: 1 }), 'forced'],
    [closes(swi, 1, false, { entropies: [1.2], reference: 1, drawn: 9 }), 'forced'],
    [closes(soft, 3, false, { entropies: [0, 0.5, 0] }), null], [closes(soft, 3, false, { entropies: [0.5, 0, 0] }), 'forced'], [closes(soft, 1, false, { entropies: [0.5], drawn: 9 }), 'forced'],
  ];
  const wrong = told.filter(([is, should]) => is !== should).length;
  check('rules', wrong === 0, `${told.length - wrong} of ${told.length} decisions`);
}

/** Errors for a user's questions. */
function questions() {
  const right = chain('a = 5 ; h = a + 4 ; c = h - a ; ? c :', 7);
  check('arithmetic', values(right).join() === '5,2,4' && answerIf(right, { step: 0, value: 6 }) === '1', `${values(right)}`);
  const wrong = ['', '? a :', 'a = 5', 'a = 9 ; b = a + 1 ; ? b :', 'a = 5 ; b = c + 1 ; ? b :', 'a = 5 ; b = a / 2 ; ? b :', 'a = 5 ; a = a + 1 ; ? a :', 'a = 5 ; b = a + 1 ; ? z :', 'a = 5 ; ? a :', '<script>alert(1)</script>'];
  const unsaid = wrong.filter((question) => !chain(question, 7).wrong);
  check('questions', unsaid.length === 0, `${wrong.length} invalid questions${unsaid.length ? `, accepted: ${JSON.stringify(unsaid)}` : ''}`);
}

/** The page's output: rows, and escaped text. */
function exported() {
  const of = subject('micro', 'sft'), row = decode(of, of.words.encode('<bos> a = 5 ; h = a + 4 ; ? h :'));
  const lines = csv([{ name: 'micro/sft', decode: 'normal', subject: of, row }]).trim().split('\n'), width = lines[0].split(',').length;
  const formulas = lines.filter((line) => /(^|,)"?[=+@]/u.test(line));
  check('csv', lines.length === row.positions.length + 1 && width === 11 && formulas.length === 0, `${lines.length - 1} rows of ${width} columns, ${formulas.length} cells begin like a formula`);
  const bad = [...'\u202a\u202e\u2066\u2069\u200f\u0000\u001b\u0085'].filter((c) => shown(`a${c}b`) !== 'a\ufffdb');
  check('shown', bad.length === 0 && shown('ä <b> ñ 数') === 'ä <b> ñ 数', `${bad.length} control characters pass`);
  check('different', [...different(['a', 'b', 'c'], ['a', 'c'])].join() === '1' && different(['a'], ['a']).size === 0, 'words that the other text lacks');
}

/** The page allows only its own script. */
function policy() {
  const html = fs.readFileSync(page, 'utf8'), told = /Content-Security-Policy" content="([^"]*)"/u.exec(html)[1];
  const scripts = [...html.matchAll(/<script([^>]*)>([^]*?)<\/script>/gu)].filter(([, type]) => !type.includes('octet-stream'));
  const hashes = scripts.map(([, , text]) => `'sha256-${crypto.createHash('sha256').update(text).digest('base64')}'`);
  const handlers = html.replace(/<script[^]*?<\/script>/gu, '').match(/<[^>]* on[a-z]+=/gu) ?? [];
  check('policy', told.startsWith("default-src 'none'; script-src " + hashes.join(' ') + ';') && scripts.length === 1 && handlers.length === 0, `${scripts.length} script, ${handlers.length} handlers in tags`);
}

/** The page's embedded data, unpacked by its own code. */
async function carried() {
  const html = fs.readFileSync(page, 'utf8'), part = (id) => new RegExp(`<script type="application/octet-stream" id="${id}">([^<]*)</script>`, 'u').exec(html)[1];
  const { runs } = JSON.parse(new TextDecoder().decode(await inflate(part('lab-data'))));
  const run = runs.find(({ name }) => name === 'micro'), subjects = [];
  for (const model of run.models) {
    const weights = tensorsOf(model.index, fromPlanes(await inflate(part(model.data)))), words = new Words(run.tokenizer);
    const file = tensors(path.join(FIXTURES, 'micro', model.phase, 'checkpoint', 'model.safetensors'));
    let most = 0;
    file.forEach(({ data }, name) => data.forEach((x, i) => (most = Math.max(most, Math.abs(x - weights.get(name).data[i]) / Math.max(Math.abs(x), 1e-30)))));
    check(`weights ${model.phase}`, most <= (subjects.length ? 2 ** -14 : 0), `the page's differ by ${most.toExponential(1)} of themselves at most`);
    subjects.push({ name: `micro/${model.phase}`, words, model: new Decoder(model.config, weights), reasoning: model.reasoning, stop: model.stop });
    const exact = subject('micro', model.phase);
    const rows = run.problems.slice(0, 60).map((question) => [exact, subjects.at(-1)].map((of) => decode(of, words.encode(run.prefix + question)).positions.map((p) => p.token).join()));
    check(`rows ${model.phase}`, rows.every(([a, b]) => a === b), `${rows.filter(([a, b]) => a === b).length} of ${rows.length} as with the weights of the file`);
  }
  return { run, of: subjects[0] };
}

/** Every change on some problems, for `probe generate` to repeat; and how often arithmetic predicts the answer of a swap. */
function changes({ run, of }) {
  const problems = run.problems.map((question) => ({ question, prompt: of.words.encode(run.prefix + question) })), cases = [];
  const reading = states(of, problems, run.modulus, 40);
  let bank;
  for (let next = reading.next(); ; next = reading.next()) if (next.done) { bank = next.value; break; }
  let [asked, foreseen] = [0, 0];
  for (const [number, { question, prompt }] of problems.entries()) {
    if (asked === 50) break;
    const plan = chain(question, run.modulus), own = decode(of, prompt), answer = answerOf(of.words, own.positions);
    const goal = answer === answerIf(plan) && held(plan, of.words, own.positions)[0];
    if (!goal) continue;
    const leads = [...Array(run.modulus).keys()].filter((v) => ![goal.value].includes(v) && answerIf(plan, { step: goal.step, value: v }) !== answer);
    if (!leads.length) continue;
    const value = leads[number % leads.length], donor = donorWith(value, { subject: of, problems, modulus: run.modulus, except: number, latents: latentsOf(own)[goal.block].length });
    const what = { donor: latentsOf(donor.row)[donor.block], states: bank, value, from: goal.value, dose: 1, seed: 1 };
    const swapped = changed(of, prompt, { kind: 'swap', block: goal.block, steps: 'all', what });
    asked++;
    if (answerOf(of.words, swapped.row.positions) === answerIf(plan, { step: goal.step, value })) foreseen++;
    if (asked > 4) continue;
    for (const kind of Object.keys(CHANGES)) for (const steps of ['all', [1], [0, 3]]) {
      const spec = { kind, block: goal.block, steps, what }, { row, made } = changed(of, prompt, spec);
      const { line, file } = command({ run: run.path, phase: 'sft', text: run.prefix + question, kind, block: goal.block, steps }, made);
      const name = path.join(folder, `${cases.length}.safetensors`);
      if (file) fs.writeFileSync(name, swapFile(made));
      cases.push({ kind, line: file ? line.replaceAll(file, name) : line, tokens: row.positions.filter((p) => p.kind !== 'latent').map((p) => p.token) });
    }
  }
  check('foreseen', asked === 50 && foreseen >= 0.95 * asked, `${foreseen} of ${asked} answers after a swap are those that arithmetic predicts`);
  fs.writeFileSync(path.join(folder, 'cases.json'), JSON.stringify(cases));
}

(async () => {
  families();
  [['micro', 'sft'], ['micro', 'grpo'], ['micro-compressed', 'sft'], ['micro-two-latents', 'sft'], ['micro-graph', 'sft']].forEach(([run, phase]) => traces(run, phase));
  rules();
  questions();
  exported();
  policy();
  changes(await carried());
  process.exit(failed ? 1 : 0);
})();
