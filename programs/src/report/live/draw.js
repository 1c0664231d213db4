'use strict';
// Pieces of the laboratory: elements from text (never from HTML), traces, the lens, the heads, probabilities, files. Knows decoded rows
// and what they look like; nothing of what is chosen.

/** An element; attributes that are null are left out, functions are listeners, strings among the children are text as it may be shown. */
function el(tag, attributes = {}, ...children) {
  const svg = SVG_TAGS.has(tag);
  const node = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') node.addEventListener(name, value);
    else if (name === 'style') Object.entries(value).forEach(([key, v]) => node.style.setProperty(key, v));
    else node.setAttribute(name, value === true ? '' : name === 'value' ? value : shown(String(value)));
  }
  node.append(
    ...children
      .flat(9)
      .filter((child) => child !== null && child !== undefined && child !== false)
      .map((child) => (child instanceof Node ? child : shown(String(child)))),
  );
  return node;
}
const SVG_TAGS = new Set(['svg', 'g', 'rect', 'text', 'path', 'line', 'title']);

/** Text as it may be shown: characters that steer the terminal, the page or the direction of writing are made visible. */
const shown = (text) => text.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069\u061c]/gu, '\ufffd');

/** New children, with the focus on the one that has the key of the one before. */
function redraw(box, ...children) {
  const key = box.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  box.replaceChildren(...children.flat(9).filter(Boolean));
  if (key) [...box.querySelectorAll('[data-key]')].find((node) => node.dataset.key === key)?.focus();
}

const percent = (p) =>
  p >= 0.9995 ? '100 %' : p >= 0.1 ? `${(100 * p).toFixed(0)} %` : p >= 0.001 ? `${(100 * p).toFixed(1)} %` : '<0.1 %';

/** The most probable tokens of logits, or of a reading that a program made, `[[word, p], …]`. */
function most(words, logits, count) {
  if (logits.says) return logits.says.slice(0, count);
  const now = read(logits);
  const order = [...logits.keys()].sort((a, b) => logits[b] - logits[a] || a - b).slice(0, count);
  return order.map((token) => [words.words[token] ?? `#${token}`, now.p(token)]);
}

const wordOf = (words, position) => (position.kind === 'latent' ? `latent ${position.step + 1}` : (words.words[position.token] ?? '?'));
const said = (subject, position) => most(subject.words, subject.model.lens(position.seen.resid.at(-1)), 1)[0];

/** Indices of the words of `a` that are not in a longest common subsequence with `b`. */
function different(a, b) {
  const longest = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      longest[i][j] = a[i] === b[j] ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
  const out = new Set();
  for (let i = 0, j = 0; i < a.length;) {
    if (j < b.length && a[i] === b[j]) {
      i++;
      j++;
    } else if (j < b.length && longest[i][j + 1] > longest[i + 1][j]) j++;
    else out.add(i++);
  }
  return out;
}

/**
 * What a model wrote, blocks as chips. `options`: `key` (what places are called), `label`, `at` (the chosen place), `against` (a row to
 * mark differences from), `stands` (what each block stands for), `choose(index)`, `chip(block)` and `latent(block, step)` (more attributes),
 * `touched` (the block and steps that were changed).
 */
function trace(subject, row, options) {
  const { words } = subject,
    all = row.positions;
  const names = (positions) => positions.map((p) => (p.kind === 'latent' ? said(subject, p)[0] : `${p.kind}${p.token}`));
  const marks = options.against ? different(names(all), names(options.against.positions)) : new Set();
  const nodes = [];
  let chip = null;
  const place = (position, index, text, extra = {}) =>
    el(
      'span',
      {
        class: ['lab-p', position.kind, marks.has(index) && 'differs', extra.touched && 'touched'].filter(Boolean).join(' '),
        'data-key': `${options.key}${index}`,
        'aria-label': describe(subject, position),
        title: describe(subject, position),
        role: 'button',
        tabindex: index === (options.at ?? 0) ? 0 : -1,
        'aria-pressed': index === options.at ? 'true' : 'false',
        click: () => options.choose(index),
        ...extra.attributes,
      },
      text,
    );
  all.forEach((position, index) => {
    const { kind } = position,
      latent = kind === 'latent';
    if ((kind === 'swi' || latent) && !chip) {
      const block = all.slice(index).find((p) => p.kind === 'latent')?.block ?? null;
      const stands = options.stands?.find((h) => h.block === block);
      chip = el('span', { class: 'lab-chip', ...(block === null ? {} : options.chip?.(block)) });
      nodes.push(el('span', { class: 'lab-block' }, chip, el('small', {}, stands ? `stands for ${stands.said}` : '')));
    }
    if (kind === 'swi') chip.append(place(position, index, 'swi'));
    else if (latent) {
      const touched = options.touched?.(position.block, position.step);
      const attributes = { style: { '--p': position.pExit ?? 0 }, ...options.latent?.(position.block, position.step) };
      chip.append(place(position, index, said(subject, position)[0], { touched, attributes }));
    } else if (kind.startsWith('swi_end')) {
      const node = place(position, index, kind === 'swi_end_forced' ? '/swi forced' : '/swi');
      if (chip) chip.append(node);
      else nodes.push(node);
      chip = null;
    } else {
      chip = null;
      nodes.push(place(position, index, wordOf(words, position)));
    }
  });
  const move = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    const places = [...event.currentTarget.querySelectorAll('.lab-p')],
      now = places.indexOf(document.activeElement);
    if (now < 0) return;
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      places[now].click();
      return;
    }
    if (by === undefined) return;
    event.preventDefault();
    const next = places[Math.max(0, Math.min(places.length - 1, now + by))];
    places[now].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  };
  return el('div', { class: 'lab-trace', role: 'group', 'aria-label': options.label, keydown: move }, nodes);
}

/** A place in words. */
function describe(subject, position) {
  const parts = [
    position.kind === 'swi_end_forced' ? '/swi forced: the block may be no longer' : position.kind === 'latent' ? `latent step ${position.step + 1} of block ${position.block + 1}` : `“${wordOf(subject.words, position)}”`,
  ];
  if (position.kind === 'latent' && position.next)
    parts.push(
      `would say ${most(subject.words, subject.model.lens(position.seen.resid.at(-1)), 3)
        .map(([w, p]) => `${w} ${percent(p)}`)
        .join(', ')}`,
    );
  if (position.pSwi > 0.0005) parts.push(`p(<swi>) ${percent(position.pSwi)}`);
  if (position.pExit !== undefined) parts.push(`p(</swi>) ${percent(position.pExit)}`);
  return parts.join(' · ');
}

/** What every layer would say at these places (columns), layers downwards. */
function lensTable(subject, positions, caption) {
  const layers = subject.model.layers.length;
  const name = (row) => (row + (subject.after ?? 0) === 0 ? 'embedding' : `blocks.${row + (subject.after ?? 0) - 1}`);
  const cell = (position, layer) => {
    const top = most(subject.words, subject.model.lens(position.seen.resid[layer]), 3);
    const tip = `${name(layer)}: ${top.map(([word, p]) => `${word} ${percent(p)}`).join(', ')}`;
    return el('td', { style: { '--s': top[0][1].toFixed(3) }, title: tip }, top[0][0], el('small', {}, percent(top[0][1])));
  };
  const head = el(
    'tr',
    {},
    el('td', {}),
    positions.map((p) => el('th', { scope: 'col' }, wordOf(subject.words, p))),
  );
  const rows = Array.from({ length: layers + 1 }, (_, layer) =>
    el(
      'tr',
      {},
      el('th', { scope: 'row' }, name(layer)),
      positions.map((position) => cell(position, layer)),
    ),
  );
  return el(
    'div',
    { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption },
    el('table', { class: 'lab-lens' }, el('caption', {}, caption), el('thead', {}, head), el('tbody', {}, rows)),
  );
}

/** The next token at a place, as bars. */
function probabilities(subject, position, caption) {
  if (!position.seen)
    return el('div', {}, el('h4', {}, caption), el('p', { class: 'note' }, 'The text ends here: nothing comes after it.'));
  const bars = most(subject.words, subject.model.lens(position.seen.resid.at(-1)), 6).map(([word, p]) =>
    el(
      'li',
      {},
      el('code', {}, word),
      el('span', { class: 'lab-bar', style: { '--w': `${(100 * p).toFixed(1)}%` } }),
      el('span', {}, percent(p)),
    ),
  );
  return el('div', {}, el('h4', {}, caption), el('ol', { class: 'lab-next' }, bars));
}

const CELL = 13,
  LEFT = 54,
  TOP = 74;

/** Where every head looks from one place: heads downwards, places to the right. Colours stand in attributes, so that it can be saved. */
function heads(subject, row, index, caption) {
  const all = [...row.prompt, ...row.positions],
    at = row.prompt.length + index;
  const { seen } = all[at];
  if (!seen) return el('p', { class: 'note' }, 'The last token is written and not read again: no head looks from there.');
  const names = seen.pattern.flatMap((layer, number) => layer.map((weights, head) => ({ name: `L${number}H${head}`, weights })));
  const wide = LEFT + (at + 1) * CELL + 8,
    high = TOP + names.length * CELL + 4;
  const top = all
    .slice(0, at + 1)
    .map((p, i) =>
      el(
        'text',
        {
          x: 0,
          y: 0,
          'font-size': 10,
          fill: p.kind === 'latent' ? PINK : 'currentColor',
          transform: `translate(${LEFT + i * CELL + CELL - 4} ${TOP - 4}) rotate(-90)`,
        },
        wordOf(subject.words, p),
      ),
    );
  const cells = names.flatMap(({ name, weights }, y) =>
    [...weights].map(
      (w, x) =>
        w > 0.005 &&
        el(
          'rect',
          {
            x: LEFT + x * CELL,
            y: TOP + y * CELL,
            width: CELL - 1,
            height: CELL - 1,
            fill: all[x].kind === 'latent' ? PINK : BLUE,
            'fill-opacity': Math.sqrt(w).toFixed(2),
          },
          el('title', {}, `${name} looks at ${wordOf(subject.words, all[x])}: ${percent(w)}`),
        ),
    ),
  );
  const sides = names.map(({ name }, y) =>
    el('text', { x: LEFT - 6, y: TOP + y * CELL + 11, 'font-size': 10, 'text-anchor': 'end', fill: 'currentColor' }, name),
  );
  const frame = el('rect', {
    x: LEFT - 1,
    y: TOP - 1,
    width: (at + 1) * CELL + 1,
    height: names.length * CELL + 1,
    fill: 'none',
    stroke: 'currentColor',
    'stroke-opacity': 0.3,
  });
  return el(
    'svg',
    { role: 'img', width: wide, height: high, viewBox: `0 0 ${wide} ${high}`, 'font-family': 'sans-serif' },
    el('title', {}, caption),
    frame,
    top,
    sides,
    cells,
  );
}
const dark = typeof matchMedia !== 'undefined' && matchMedia('(prefers-color-scheme: dark)').matches;
const PINK = dark ? '#e58fc4' : '#b8478f',
  BLUE = dark ? '#56b4e9' : '#0072b2';

/** A drawing as a file of its own. */
function standalone(svg) {
  const copy = svg.cloneNode(true);
  copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
  copy.setAttribute('color', dark ? '#e7e9ec' : '#1c1e21');
  return copy.outerHTML;
}

/** p(<swi>) before every token, and p(</swi>) after every latent step. */
function switching(subject, row, caption) {
  const high = 60,
    base = high + 8,
    wide = LEFT + row.positions.length * CELL + 8;
  const bars = row.positions.map((p, i) => {
    const share = p.pSwi ?? p.pExit ?? 0,
      latent = p.kind === 'latent';
    return el(
      'rect',
      { x: LEFT + i * CELL, y: base - high * share, width: CELL - 2, height: Math.max(high * share, 0.5), fill: latent ? PINK : BLUE },
      el('title', {}, `${wordOf(subject.words, p)}: p(${latent ? '</swi>' : '<swi>'}) ${percent(share)}`),
    );
  });
  const names = row.positions.map((p, i) =>
    el(
      'text',
      {
        x: 0,
        y: 0,
        'font-size': 10,
        'text-anchor': 'end',
        fill: p.kind === 'latent' ? PINK : 'currentColor',
        transform: `translate(${LEFT + i * CELL + CELL - 4} ${base + 5}) rotate(-90)`,
      },
      wordOf(subject.words, p),
    ),
  );
  const axis = [0, 0.5, 1].map((share) => [
    el('line', {
      x1: LEFT,
      x2: wide - 8,
      y1: base - high * share,
      y2: base - high * share,
      stroke: 'currentColor',
      'stroke-opacity': 0.25,
    }),
    el('text', { x: LEFT - 6, y: base - high * share + 4, 'font-size': 10, 'text-anchor': 'end', fill: 'currentColor' }, String(share)),
  ]);
  return el(
    'svg',
    { role: 'img', width: wide, height: base + 62, viewBox: `0 0 ${wide} ${base + 62}`, 'font-family': 'sans-serif' },
    el('title', {}, caption),
    axis,
    bars,
    names,
  );
}

/** Hands a file to the browser. */
function save(name, content, type) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  el('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** Rows of decoded positions as CSV, with the columns of `positions`. */
function csv(parts) {
  // A spreadsheet runs a text that begins like a formula: an apostrophe before it says that it is text (as in src/store/rows.rs).
  const plain = (value) =>
    typeof value === 'string' && /^[=+\-@\t\r]/u.test(value) && Number.isNaN(Number(value)) ? `'${value}` : String(value ?? '');
  const cell = (value) => {
    const text = plain(value);
    return /[",\n]/u.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [['checkpoint', 'decode', 'index', 'kind', 'id', 'token', 'logprob', 'entropy', 'p_swi', 'p_exit', 'lens']];
  for (const { name, decode: what, subject, row } of parts)
    row.positions.forEach((p, index) => {
      const lens = p.kind === 'latent' ? JSON.stringify(most(subject.words, subject.model.lens(p.seen.resid.at(-1)), 5)) : null;
      lines.push([name, what, index, p.kind, p.token, subject.words.words[p.token], p.logprob, p.entropy, p.pSwi, p.pExit, lens]);
    });
  return `${lines.map((line) => line.map(cell).join(',')).join('\n')}\n`;
}

if (typeof module !== 'undefined') module.exports = { csv, different, shown };
