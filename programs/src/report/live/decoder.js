'use strict';
// Small language models in plain JavaScript: the decoders of the Qwen3, Qwen2, Llama and Gemma families (src/model) with the latent
// recurrence (src/latent), greedy, one row, one position at a time. Sums run in 64 bits, what is kept is 32 bits wide. No
// dependency, no request. Knows nothing of the page: Node runs the same file against the fixtures (tests/live.cjs).

/** Base64 → bytes. */
function bytesOf(base64) {
  const text = atob(base64.trim());
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/** Gzip in base64 → bytes. */
async function inflate(base64) {
  const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Floats from their bytes in four planes (all lowest bytes first, …), which compress better than the floats do. */
function fromPlanes(planes) {
  const count = planes.length / 4,
    bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < 4; plane++) for (let i = 0; i < count; i++) bytes[4 * i + plane] = planes[plane * count + i];
  return new Float32Array(bytes.buffer);
}

/** Tensors by name from one array; `index` is `[[name, shape], …]` in its order. */
function tensorsOf(index, floats) {
  const tensors = new Map();
  let at = 0;
  for (const [name, shape] of index) {
    const size = shape.reduce((a, b) => a * b, 1);
    tensors.set(name, { shape, data: floats.subarray(at, at + size) });
    at += size;
  }
  if (at !== floats.length) throw new Error(`the weights hold ${floats.length} numbers, their index ${at}`);
  return tensors;
}

// ---- The decoder ------------------------------------------------------------------------------------------------------------

const FAMILIES = ['qwen3', 'qwen2', 'llama', 'gemma', 'mistral'];

/** What is needed of a `config.json`, in either of its forms; another architecture is refused. */
function readConfig(json) {
  const family = json.model_type;
  if (!FAMILIES.includes(family)) throw new Error(`model_type ${JSON.stringify(family)}: this decoder knows ${FAMILIES.join(', ')}`);
  if (json.sliding_window && (json.use_sliding_window ?? family === 'mistral')) throw new Error('this decoder knows no attention window');
  const rope = json.rope_parameters ?? { ...json.rope_scaling, rope_theta: json.rope_theta };
  const kind = rope.rope_type ?? rope.type ?? 'default';
  if (!['default', 'llama3'].includes(kind)) throw new Error(`rope_type ${JSON.stringify(kind)}: this decoder knows default and llama3`);
  const heads = json.num_attention_heads;
  const width = { qwen3: 128, gemma: 256 }[family] ?? json.hidden_size / heads;
  const headDim = json.head_dim ?? width,
    theta = rope.rope_theta ?? json.rope_theta ?? 10000;
  // Frequencies are kept in 32 bits, as Hugging Face does; angles are computed in 64.
  const frequency = (i) => {
    const base = theta ** ((-2 * i) / headDim);
    return Math.fround(kind === 'llama3' ? base / llama3Divisor(rope, base) : base);
  };
  return {
    family,
    heads,
    headDim,
    width: json.hidden_size,
    inner: json.intermediate_size,
    layers: json.num_hidden_layers,
    keyHeads: json.num_key_value_heads ?? heads,
    vocabulary: json.vocab_size,
    eps: json.rms_norm_eps ?? 1e-6,
    frequencies: Array.from({ length: headDim / 2 }, (_, i) => frequency(i)),
    tied: json.tie_word_embeddings ?? family === 'gemma',
    // Gemma stores the weights of its norms around 0 and scales what enters the first block.
    offset: family === 'gemma' ? 1 : 0,
    scale: family === 'gemma' ? Math.sqrt(json.hidden_size) : 1,
  };
}

/** Llama 3's stretching of low frequencies (`_compute_llama3_parameters` in transformers). */
function llama3Divisor(rope, frequency) {
  const original = rope.original_max_position_embeddings,
    wavelength = (2 * Math.PI) / frequency;
  if (wavelength < original / rope.high_freq_factor) return 1;
  if (wavelength > original / rope.low_freq_factor) return rope.factor;
  const smooth = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return 1 / ((1 - smooth) / rope.factor + smooth);
}

const silu = (x) => x / (1 + Math.exp(-x));
/** GELU by its tanh approximation. */
const gelu = (x) => 0.5 * x * (1 + Math.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));

/** `W x + b` with W `[out, in]`, one row after another. */
function product({ weight, bias }, x) {
  const wide = x.length,
    out = new Float32Array(weight.length / wide);
  for (let row = 0, at = 0; row < out.length; row++) {
    let sum = bias ? bias[row] : 0;
    for (let i = 0; i < wide; i++) sum += weight[at++] * x[i];
    out[row] = sum;
  }
  return out;
}

/** `x / rms(x) * (offset + weight)` of `x[from .. from + weight.length]`, written to `out` there. */
function norm(x, weight, { eps, offset }, from = 0, out = new Float32Array(x.length)) {
  let squares = 0;
  for (let i = 0; i < weight.length; i++) squares += x[from + i] * x[from + i];
  const by = 1 / Math.sqrt(squares / weight.length + eps);
  for (let i = 0; i < weight.length; i++) out[from + i] = x[from + i] * by * (offset + weight[i]);
  return out;
}

function add(a, b) {
  const out = new Float32Array(a.length);
  for (let i = 0; i < out.length; i++) out[i] = a[i] + b[i];
  return out;
}

class Decoder {
  /** From a `config.json` and tensors by Hugging Face's names. */
  constructor(json, tensors) {
    const config = readConfig(json);
    const of = (name, size) => {
      const found = tensors.get(name);
      if (!found) throw new Error(`no tensor ${name}`);
      if (found.data.length !== size) throw new Error(`${name} holds ${found.data.length} numbers, expected ${size}`);
      return found.data;
    };
    const { width, inner, heads, keyHeads, headDim, family } = config;
    const linear = (name, rows, columns, biased) => ({
      weight: of(`${name}.weight`, rows * columns),
      bias: biased ? of(`${name}.bias`, rows) : null,
    });
    const layer = (number) => {
      const p = `model.layers.${number}.`,
        biased = family === 'qwen2',
        q = heads * headDim,
        kv = keyHeads * headDim;
      const headNorm = (name) => (family === 'qwen3' ? of(`${p}self_attn.${name}.weight`, headDim) : null);
      return {
        before: of(`${p}input_layernorm.weight`, width),
        q: linear(`${p}self_attn.q_proj`, q, width, biased),
        k: linear(`${p}self_attn.k_proj`, kv, width, biased),
        v: linear(`${p}self_attn.v_proj`, kv, width, biased),
        o: linear(`${p}self_attn.o_proj`, width, q),
        qNorm: headNorm('q_norm'),
        kNorm: headNorm('k_norm'),
        middle: of(`${p}post_attention_layernorm.weight`, width),
        gate: linear(`${p}mlp.gate_proj`, inner, width),
        up: linear(`${p}mlp.up_proj`, inner, width),
        down: linear(`${p}mlp.down_proj`, width, inner),
      };
    };
    this.config = config;
    this.table = of('model.embed_tokens.weight', config.vocabulary * width);
    this.layers = Array.from({ length: config.layers }, (_, number) => layer(number));
    this.last = of('model.norm.weight', width);
    this.head = { weight: config.tied ? this.table : of('lm_head.weight', config.vocabulary * width), bias: null };
    this.activation = family === 'gemma' ? gelu : silu;
  }

  /** Keys and values of no position yet. */
  cache() {
    return this.layers.map(() => ({ keys: [], values: [] }));
  }

  /** What the first block reads of a token, `[D]`. */
  embed(token) {
    const { width, scale } = this.config;
    return this.table.slice(token * width, (token + 1) * width).map((x) => x * scale);
  }

  /** Logits of a hidden state after the final norm. */
  unembed(hidden) {
    return product(this.head, hidden);
  }

  /** What a layer's stream would say: the logit lens (nostalgebraist 2020). */
  lens(stream) {
    return this.unembed(norm(stream, this.last, this.config));
  }

  /** One position: its input `[D]` → the hidden state after the final norm. `seen` receives `resid`, the stream before the first
   * block and after each one, and `pattern`, by layer and head the weights of all positions so far. */
  forward(x, cache, seen = {}) {
    [seen.resid, seen.pattern] = [[x], []];
    for (const [number, layer] of this.layers.entries()) {
      const pattern = [];
      x = add(x, this.attend(layer, norm(x, layer.before, this.config), cache[number], pattern));
      const y = norm(x, layer.middle, this.config);
      const gate = product(layer.gate, y),
        up = product(layer.up, y);
      for (let i = 0; i < gate.length; i++) gate[i] = this.activation(gate[i]) * up[i];
      x = add(x, product(layer.down, gate));
      seen.resid.push(x);
      seen.pattern.push(pattern);
    }
    return norm(x, this.last, this.config);
  }

  attend(layer, x, cache, pattern) {
    const { heads, keyHeads, headDim } = this.config,
      position = cache.keys.length;
    const q = this.rotate(product(layer.q, x), layer.qNorm, position);
    cache.keys.push(this.rotate(product(layer.k, x), layer.kNorm, position));
    cache.values.push(product(layer.v, x));
    const z = new Float32Array(heads * headDim),
      by = 1 / Math.sqrt(headDim);
    for (let head = 0; head < heads; head++) {
      const from = head * headDim,
        shared = Math.floor(head / (heads / keyHeads)) * headDim;
      const weights = new Float64Array(position + 1);
      let most = -Infinity,
        total = 0;
      for (let at = 0; at <= position; at++) {
        let score = 0;
        for (let i = 0; i < headDim; i++) score += q[from + i] * cache.keys[at][shared + i];
        weights[at] = score * by;
        most = Math.max(most, weights[at]);
      }
      for (let at = 0; at <= position; at++) total += weights[at] = Math.exp(weights[at] - most);
      for (let at = 0; at <= position; at++) {
        const weight = (weights[at] /= total);
        for (let i = 0; i < headDim; i++) z[from + i] += weight * cache.values[at][shared + i];
      }
      pattern.push(weights);
    }
    return product(layer.o, z);
  }

  /** Per head: its norm where there is one, then the rotation of both halves (RoPE, half-split). */
  rotate(x, weight, position) {
    const { headDim, frequencies } = this.config,
      half = headDim / 2;
    for (let from = 0; from < x.length; from += headDim) {
      if (weight) norm(x, weight, this.config, from, x);
      for (let i = 0; i < half; i++) {
        const angle = position * frequencies[i],
          [sin, cos] = [Math.sin(angle), Math.cos(angle)];
        const [a, b] = [x[from + i], x[from + half + i]];
        x[from + i] = a * cos - b * sin;
        x[from + half + i] = b * cos + a * sin;
      }
    }
    return x;
  }
}

// ---- Text -------------------------------------------------------------------------------------------------------------------

/** A vocabulary of whole words: what `tokenizer.json` says where it is one of ours. */
class Words {
  constructor(json) {
    const { model, pre_tokenizer: split, normalizer } = json;
    if (model?.type !== 'WordLevel' || split?.type !== 'WhitespaceSplit' || normalizer)
      throw new Error(`a tokenizer of kind ${model?.type}: only words between blanks are read here`);
    this.ids = new Map(Object.entries(model.vocab));
    this.unknown = this.ids.get(model.unk_token);
    this.special = new Map(json.added_tokens.map(({ content, id }) => [content, id]));
    this.special.forEach((id, content) => this.ids.set(content, id));
    this.words = [];
    this.ids.forEach((id, word) => (this.words[id] = word));
  }

  /** Ids of a text; special tokens written in it are recognised, also without blanks around them. */
  encode(text) {
    const marks = [...this.special.keys()].sort((a, b) => b.length - a.length);
    const apart = marks.reduce(
      (rest, mark) =>
        rest.flatMap((part) => (marks.includes(part) ? [part] : part.split(mark).flatMap((piece, i) => (i ? [mark, piece] : [piece])))),
      [text],
    );
    return apart
      .flatMap((part) => (marks.includes(part) ? [part] : part.split(/\s+/u)))
      .filter((word) => word)
      .map((word) => this.ids.get(word) ?? this.unknown);
  }

  /** Words of a text that the model does not know. */
  strange(text) {
    return text.split(/\s+/u).filter((word) => word && !this.ids.has(word));
  }

  decode(ids) {
    return ids.map((id) => this.words[id] ?? '').join(' ');
  }
}

// ---- Decoding: greedy, with blocks of latents (src/latent) ----------------------------------------------------------------------

/** Log-probabilities with the masked tokens at −∞, the most probable token (the first of them) and the entropy in nats. */
function read(logits, masked = []) {
  const logprobs = Float64Array.from(logits);
  masked.forEach((token) => (logprobs[token] = -Infinity));
  let drawn = 0;
  for (let i = 1; i < logprobs.length; i++) if (logprobs[i] > logprobs[drawn]) drawn = i;
  const most = logprobs[drawn];
  let total = 0,
    weighted = 0;
  for (const x of logprobs)
    if (x > -Infinity) {
      const w = Math.exp(x - most);
      total += w;
      weighted += w * (x - most);
    }
  const log = Math.log(total);
  for (let i = 0; i < logprobs.length; i++) logprobs[i] -= most + log;
  return { logprobs, drawn, entropy: log - weighted / total, p: (token) => Math.exp(logprobs[token]) };
}

/** What enters a latent position, from the hidden state before it: the kinds of `reasoning.json` that need no head of their own. */
function inject(model, source, hidden) {
  switch (source.kind) {
    case 'hidden_state':
      return hidden.slice();
    case 'fixed_embedding':
      return model.embed(source.token);
    case 'vocabulary_mixture': {
      const logits = model.unembed(hidden).map((x) => x / source.temperature);
      const { logprobs } = read(logits);
      const best = [...logprobs.keys()].sort((a, b) => logprobs[b] - logprobs[a] || a - b).slice(0, source.top_k);
      const total = best.reduce((sum, token) => sum + Math.exp(logprobs[token]), 0);
      const out = new Float32Array(hidden.length);
      for (const token of best) model.embed(token).forEach((x, i) => (out[i] += (x * Math.exp(logprobs[token])) / total));
      return out;
    }
    default:
      throw new Error(`latents of kind ${JSON.stringify(source.kind)} are not computed here`);
  }
}

/** How a checkpoint without `reasoning.json` is decoded. */
const SWITCH = { source: { kind: 'hidden_state' }, blocks: { rule: 'learnt' }, k_min: 4, k_cap: 16 };

/** The rules of `reasoning.json`: who opens a block (`opens`), and how it goes on after a latent (`closes`: drawn, forced, or not). */
function ruleOf(reasoning) {
  const { blocks, k_min: least, k_cap: most } = reasoning,
    { rule, steps, limit, end } = blocks;
  const first = (at) => at.visible === 0 && at.blocks === 0;
  const atLength = (n) => (at) => (at.step >= n ? 'forced' : null);
  const thinks = (falls) => (at) => (falls(at) || at.drawn === end || at.step >= limit ? 'forced' : null);
  const rules = {
    learnt: { draws: true, opens: () => false, closes: (at) => (at.exit && at.step >= least ? 'drawn' : atLength(most)(at)) },
    never: { opens: () => false, closes: atLength(most) },
    after_prompt: { opens: (at) => steps > 0 && first(at), closes: atLength(steps) },
    pause: { opens: (at) => steps > 0 && first(at), closes: atLength(steps), unmarked: true },
    thinking: { opens: first, closes: (at) => (at.exit ? 'drawn' : atLength(limit)(at)) },
    swireasoning: {
      opens: (at) =>
        !at.answering &&
        at.blocks < blocks.budget &&
        (at.visible + at.blocks === 0 || (at.since >= blocks.window && at.entropy > at.reference)),
      closes: thinks((at) => at.entropies.at(-1) < at.reference),
      unmarked: true,
      end,
    },
    soft_thinking: {
      opens: (at) => !at.answering && first(at),
      closes: thinks(
        (at) => blocks.patience > 0 && at.entropies.slice(-blocks.patience).filter((h) => h < blocks.certain).length >= blocks.patience,
      ),
      unmarked: true,
      end,
    },
  };
  if (!rules[rule]) throw new Error(`blocks by the rule ${JSON.stringify(rule)} are not known here`);
  return rules[rule];
}

/**
 * Continues a prompt greedily. `subject` is `{ model, words, reasoning, stop }`.
 *
 * `how.change(block, step, input)` says what enters a latent position instead (counted from 0; null: nothing else), `how.skipFrom`
 * from which block on `<swi>` is masked (the next best token instead), `how.most` how many visible tokens at most.
 *
 * Returns `{ prompt, positions, end }`. A position is `{ token, kind, block, step, entropy, pSwi, pExit, input, own, seen, next }`: `input`
 * is what entered a latent, `own` what would have; `seen` is of [`Decoder.forward`]; `next` are the log-probabilities after it, as
 * the decoder reads them. `prompt` has the same for the prompt.
 */
function decode(subject, prompt, how = {}) {
  const { model, words, stop } = subject,
    reasoning = subject.reasoning ?? SWITCH,
    rule = ruleOf(reasoning);
  const [swi, swiEnd, latent] = ['<swi>', '</swi>', '<latent>'].map((word) => words.special.get(word));
  const most = how.most ?? 80,
    cache = model.cache(),
    positions = [],
    shown = [];
  let hidden,
    seen,
    visible = 0,
    blocks = 0,
    since = 0,
    reference = null,
    answering = false,
    end = null,
    mode = null,
    entropies = [];
  const feed = (input) => {
    seen = {};
    hidden = model.forward(input, cache, seen);
    return seen;
  };
  for (const token of prompt) shown.push({ token, kind: 'prompt', seen: feed(model.embed(token)), next: read(model.unembed(hidden)) });
  const say = (token, kind, rest = {}) => {
    const position = { token, kind, ...rest };
    positions.push(position);
    visible++;
    since++;
    if (stop.includes(token)) end = 'stop';
    else if (visible >= most) end = 'budget';
    if (!end) {
      position.seen = feed(model.embed(token));
      position.next = read(model.unembed(hidden));
    }
  };
  const think = () => {
    const own = inject(model, reasoning.source, hidden),
      { block, step } = mode;
    const input = how.change?.(block, step, own) ?? own;
    mode.step++;
    positions.push({ token: latent, kind: 'latent', block, step, own, input, seen: feed(input), next: read(model.unembed(hidden)) });
  };
  const text = (logits, afterBlock) => {
    const draws = rule.draws && blocks < (how.skipFrom ?? Infinity);
    const now = read(logits, swi === undefined ? [] : draws ? [latent, swiEnd] : [latent, swiEnd, swi]);
    reference ??= now.entropy;
    answering ||= rule.end !== undefined && now.drawn === rule.end;
    const may = swi !== undefined && blocks < (how.skipFrom ?? Infinity);
    const opens = may && rule.opens({ visible, blocks, since, entropy: now.entropy, reference, answering });
    if (opens && !afterBlock && rule.unmarked) {
      mode = { block: blocks++, step: 0 };
      reference = now.entropy;
      return think();
    }
    const token = opens && !rule.unmarked ? swi : now.drawn,
      isSwi = swi !== undefined && token === swi;
    if (isSwi) mode = { block: blocks++, step: 0 };
    say(token, isSwi ? 'swi' : 'text', { entropy: now.entropy, logprob: now.logprobs[token], pSwi: swi === undefined ? null : now.p(swi) });
  };
  const inBlock = (logits) => {
    if (mode.step === 0) return think();
    const now = read(logits, rule.unmarked ? [latent, swiEnd, swi] : []),
      last = positions.at(-1);
    [last.pExit, last.entropy] = [now.p(swiEnd), now.entropy];
    entropies.push(now.entropy);
    const closed =
      rule.closes({ step: mode.step, entropies, reference: reference ?? now.entropy, drawn: now.drawn, exit: now.drawn === swiEnd }) ??
      (rule.unmarked && stop.includes(now.drawn) ? 'forced' : null);
    if (!closed) return think();
    [mode, since, reference, entropies] = [null, 0, now.entropy, []];
    return rule.unmarked ? text(logits, true) : say(swiEnd, closed === 'drawn' ? 'swi_end_sampled' : 'swi_end_forced');
  };
  while (!end) {
    const logits = model.unembed(hidden);
    if (!logits.every(Number.isFinite)) end = 'non_finite';
    else if (mode) inBlock(logits);
    else text(logits, false);
  }
  return { prompt: shown, positions, end };
}

/** The words after the last `#`, which is what tasks of ours are graded by. */
function answerOf(words, positions) {
  const text = positions.filter((p) => p.kind === 'text' && !words.special.has(words.words[p.token])).map((p) => words.words[p.token]);
  const mark = text.lastIndexOf('#');
  return mark < 0 || mark + 1 === text.length ? null : text.slice(mark + 1).join(' ');
}

if (typeof module !== 'undefined')
  module.exports = { Decoder, Words, answerOf, bytesOf, decode, fromPlanes, inflate, read, ruleOf, tensorsOf };
