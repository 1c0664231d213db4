// Adds to a page: the panel of details, arrow keys inside a trace, grid or pattern, the filter of claims; and unpacks what is packed.
const PERCENTS = [...'0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz', ...Array.from({ length: 39 }, (_, i) => String.fromCharCode(0xC0 + i))].join('');
const dress = (root) => {
  for (const box of root.querySelectorAll('.problem, .lens')) {
    const tip = box.querySelector('.tip');
    const show = (event) => {
      const p = event.target.closest('.p');
      if (p && p.dataset.tip) { tip.textContent = p.dataset.tip; tip.hidden = false; }
    };
    for (const p of box.querySelectorAll('.p')) { p.dataset.tip = p.title; p.removeAttribute('title'); p.setAttribute('aria-label', p.dataset.tip); }
    box.addEventListener('mouseover', show);
    box.addEventListener('focusin', show);
    // One tab stop a trace; the arrow keys move inside it.
    for (const group of box.querySelectorAll('.trace, .grid')) {
      const all = [...group.querySelectorAll('.p')];
      all.forEach((p, i) => { p.tabIndex = i ? -1 : 0; });
      const wide = group.matches('.grid') ? group.querySelectorAll('thead th').length : 0;
      const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: wide || 1, ArrowUp: -(wide || 1), Home: -Infinity, End: Infinity };
      group.addEventListener('keydown', (event) => {
        const at = all.indexOf(document.activeElement), by = moves[event.key];
        if (at < 0 || by === undefined) return;
        event.preventDefault();
        const to = by === -Infinity ? 0 : by === Infinity ? all.length - 1 : at + by;
        if (!all[to]) return;
        all[at].tabIndex = -1; all[to].tabIndex = 0; all[to].focus();
      });
    }
  }
  // Patterns: the share under the pointer, or under a cursor that arrow keys move.
  for (const heads of root.querySelectorAll('.heads')) {
    const names = JSON.parse(heads.dataset.names), tip = heads.closest('.problem').querySelector('.tip');
    for (const box of heads.querySelectorAll('.big')) {
      const svg = box.querySelector('svg'), cell = (svg.viewBox.baseVal.width + svg.viewBox.baseVal.x) / names.length;
      const head = svg.querySelector('title').textContent.split(':')[0];
      const cursor = svg.appendChild(document.createElementNS(svg.namespaceURI, 'rect'));
      let at = [names.length - 1, 0];
      const show = (query, key) => {
        if (key < 0 || key > query || query >= names.length) return;
        at = [query, key];
        for (const [name, value] of Object.entries({ class: 'cursor', x: key * cell, y: query * cell, width: cell, height: cell })) cursor.setAttribute(name, value);
        const share = PERCENTS.indexOf(svg.dataset.w[query * (query + 1) / 2 + key]);
        tip.textContent = `${head}: ${names[query]} (position ${query}) looks at ${names[key]} (position ${key}): ${share} %`;
        tip.hidden = false;
      };
      svg.addEventListener('mousemove', (event) => {
        const p = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
        show(Math.floor(p.y / cell), Math.floor(p.x / cell));
      });
      box.addEventListener('keydown', (event) => {
        const by = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
        if (!by) return;
        event.preventDefault();
        show(at[0] + by[0], at[1] + by[1]);
      });
    }
  }
  for (const filter of root.querySelectorAll('.filter')) {
    filter.hidden = false;
    filter.addEventListener('change', () => {
      const on = new Set([...filter.querySelectorAll('input:checked')].map((i) => i.value));
      for (const claim of filter.parentElement.querySelectorAll('.claim')) claim.hidden = !on.has(claim.dataset.verdict);
    });
  }
};
dress(document);
// A link into a folded part opens it.
const sought = () => {
  try { return decodeURIComponent(location.hash.slice(1)); } catch { return ''; }
};
const reveal = () => {
  const to = sought() && document.getElementById(sought());
  for (let at = to; at; at = at.parentElement) if (at.tagName === 'DETAILS') at.open = true;
  if (to) to.scrollIntoView();
};
addEventListener('hashchange', reveal);
reveal();
// Packed parts: after the first paint, one after another, so that search and links find what is in them.
const unpack = async (box) => {
  try {
    const coded = Uint8Array.from(atob(box.querySelector('script').textContent), (c) => c.charCodeAt(0));
    const html = await new Response(new Blob([coded]).stream().pipeThrough(new DecompressionStream('gzip'))).text();
    box.innerHTML = html;
    box.removeAttribute('class');
    dress(box);
    if (sought() && box.querySelector(`#${CSS.escape(sought())}`)) reveal();
  } catch { /* its note says where the same stands */ }
};
requestAnimationFrame(() => setTimeout(async () => {
  for (const box of document.querySelectorAll('.packed')) { await unpack(box); await new Promise((go) => setTimeout(go)); }
  document.documentElement.dataset.whole = 'true';
}));
