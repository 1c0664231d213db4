// Called by .ci/page.cjs: the laboratory of the page as a reader uses it. Returns what is wrong.
const PROBLEMS = 50;

/** What the laboratory shows, as text. */
const read = (tab) => tab.evaluate(() => ({
  tiles: Object.fromEntries([...document.querySelectorAll('.lab-tile')].map((tile) => [tile.querySelector('span').textContent, tile.querySelector('b').textContent])),
  warning: document.querySelector('.lab-warn')?.textContent ?? '', why: document.querySelector('.lab-why')?.textContent ?? '', address: location.hash,
}));
const settled = (tab) => tab.waitForFunction(() => !document.querySelector('#try-lab').hasAttribute('aria-busy') && document.querySelector('.lab-trace'));
const set = async (tab, state) => { await tab.evaluate((to) => document.getElementById('try-lab').view.set(to), state); await settled(tab); };
const press = async (tab, key) => { await tab.evaluate((name) => document.querySelector(`[data-key="${name}"]`).click(), key); await settled(tab); };

async function tour(tab, wrong) {
  await press(tab, 'Take the tour');
  for (const step of [1, 2, 3]) {
    const here = await tab.$$eval('.lab-step.here', (parts) => parts.map((part) => part.id));
    if (here.join() !== `try-${step}`) wrong.push(`step ${step} of the tour shows ${here}`);
    if (step === 3) await press(tab, 'guess ?');
    await press(tab, step < 3 ? 'Next' : 'Done');
  }
  const { tiles } = await read(tab);
  if (!tiles['with the change'] || tiles['with the change'] !== tiles['arithmetic predicts'] || tiles['with the change'] === tiles['as it is'])
    wrong.push(`the swap of the tour shows ${JSON.stringify(tiles)}`);
}

async function swaps(tab, wrong) {
  let [asked, foreseen] = [0, 0];
  for (let problem = 0; asked < PROBLEMS && problem < 200; problem++) {
    await set(tab, { problem, text: '', other: null, otherText: '', block: 0, from: 0, steps: 'all', change: 'swap', guess: '?' });
    const { tiles } = await read(tab);
    if (!tiles['arithmetic predicts'] || tiles['arithmetic predicts'] === tiles['as it is']) continue;
    asked++;
    if (tiles['with the change'] === tiles['arithmetic predicts']) foreseen++;
  }
  console.log(`laboratory: ${foreseen} of ${asked} answers after a swap are those that arithmetic predicts`);
  if (asked < PROBLEMS || foreseen < 0.95 * asked) wrong.push(`${foreseen} of ${asked} swaps foreseen`);
}

async function kinds(tab, wrong) {
  await set(tab, { problem: 2, other: null, block: 0, steps: 'all' });
  for (const kind of ['value', 'zero', 'random', 'mean', 'own', 'steer', 'skip']) {
    await press(tab, kind);
    await tab.waitForFunction((k) => document.getElementById('try-lab').view.state.change === k, {}, kind);
    await press(tab, 'guess ?');
    const { tiles, why } = await read(tab);
    console.log(`laboratory: ${kind}: ${tiles['as it is']} becomes ${tiles['with the change']}. ${why}`);
    if (!tiles['with the change']) wrong.push(`${kind} shows no answer`);
  }
}

async function dragged(tab, wrong) {
  await set(tab, { problem: 2, other: null, change: 'zero', block: 0, guess: null });
  await press(tab, 'swap');
  const state = await tab.evaluate(() => {
    const [target, source] = [document.querySelectorAll('#try-1 .lab-chip')[1], document.querySelector('#try-2 .lab-chip')];
    const event = (type) => new DragEvent(type, { bubbles: true, cancelable: true, dataTransfer });
    const dataTransfer = new DataTransfer();
    source.dispatchEvent(event('dragstart'));
    target.dispatchEvent(event('dragover'));
    target.dispatchEvent(event('drop'));
    return document.getElementById('try-lab').view.state;
  });
  await settled(tab);
  if (state.change !== 'swap' || state.block !== 1) wrong.push(`a chip was dragged onto block 2: ${JSON.stringify(state)}`);
}

async function keyboard(tab, wrong) {
  await tab.focus('#try-1 .lab-p[tabindex="0"]');
  const label = () => tab.evaluate(() => document.activeElement.getAttribute('aria-label'));
  const before = await label();
  await tab.keyboard.press('Home');
  await tab.keyboard.press('ArrowRight');
  const after = await label();
  await tab.keyboard.press('Enter');
  await settled(tab);
  if (!after || before === after || (await label()) !== after) wrong.push(`arrow keys: ${before} → ${after} → ${await label()}`);
}

/** Problems that are none, as somebody may send them in a link. */
async function hostile(tab, page, wrong) {
  for (const text of ['<script>alert(1)</script> <img src=x onerror=alert(1)>', 'a = 5 ; \u202eb = a + 4 ; ? b :', '%', '"><b>', 'a = 5 ; b = a + 9 ; ? b :', '', ' ']) {
    await tab.goto('about:blank');
    await tab.goto(`file://${page}#try?${new URLSearchParams({ text, guess: '?', block: 99, steps: '7,8', at: 1e9, dose: 'x' })}`);
    await settled(tab);
    const found = await tab.evaluate(() => ({ made: document.querySelectorAll('#try img, #try-lab script').length, steering: /[\u202a-\u202e\u2066-\u2069]/u.test(document.getElementById('try').textContent) }));
    if (found.made > 0 || found.steering) wrong.push(`${JSON.stringify(text)} became more than text: ${JSON.stringify(found)}`);
  }
}

/** A link opens what it was copied from. */
async function link(tab, page, wrong) {
  await tab.goto(`file://${page}`);
  await settled(tab);
  await set(tab, { problem: 7, change: 'zero', guess: '?' });
  const before = await read(tab);
  await tab.goto('about:blank');
  await tab.goto(`file://${page}${before.address}`);
  await settled(tab);
  const after = await read(tab);
  if (JSON.stringify(before) !== JSON.stringify(after)) wrong.push(`the link ${before.address} shows ${JSON.stringify(after)}, not ${JSON.stringify(before)}`);
}

module.exports = async (browser, page, shots) => {
  const tab = await browser.newPage(), wrong = [];
  tab.on('pageerror', (error) => wrong.push(String(error)));
  tab.on('console', (message) => message.type() === 'error' && wrong.push(message.text()));
  tab.on('request', (request) => /^(file|data|blob|about):/.test(request.url()) || wrong.push(request.url()));
  await tab.setViewport({ width: 1200, height: 900 });
  await tab.goto(`file://${page}`, { timeout: 600000 });
  const painted = () => performance.getEntriesByName('first-contentful-paint')[0]?.startTime;
  if (!(await tab.$('#try-lab'))) { console.log('no model runs in this page'); return wrong; }
  await settled(tab);
  console.log(`laboratory: first paint after ${Math.round(await tab.evaluate(painted))} ms`);
  for (const part of [tour, swaps, kinds, dragged, keyboard]) await part(tab, wrong);
  await (await tab.$('.lab')).screenshot({ path: `${shots}/laboratory.png` });
  for (const part of [link, hostile]) await part(tab, page, wrong);
  await tab.close();
  return wrong;
};
