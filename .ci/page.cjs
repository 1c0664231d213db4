// Called by .ci/page: prints a line a view, leaves a screenshot of each, and ends with code 1 where a script fails, something is
// asked of the network, axe-core finds what it calls serious or critical, or the laboratory (lab.cjs) does not do what it should.
const fs = require("fs");
const explore = require("./explore.cjs");
const laboratory = require("./lab.cjs");
const puppeteer = require("puppeteer-core");
const axe = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const [page, shots] = process.argv.slice(2);

async function look(browser, scheme, width, unfolded) {
  const tab = await browser.newPage();
  const [errors, requests] = [[], []];
  tab.on("pageerror", (error) => errors.push(String(error)));
  tab.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  tab.on("request", (request) => /^(file|data):/.test(request.url()) || requests.push(request.url()));
  await tab.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await tab.setViewport({ width, height: 900 });
  await tab.goto(`file://${page}`, { timeout: 600000 });
  await tab.screenshot({ path: `${shots}/${scheme}-${width}.png` });
  await tab.waitForFunction(() => document.documentElement.dataset.whole && (!document.querySelector("#try-lab") || document.querySelector(".lab-trace")));
  if (unfolded) await tab.evaluate(() => document.querySelectorAll("details").forEach((part) => (part.open = true)));
  const height = await tab.evaluate(() => document.documentElement.scrollHeight);
  const wide = await tab.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  await tab.evaluate(axe);
  const found = await tab.evaluate(async () => {
    const { violations, passes } = await window.axe.run(document, { resultTypes: ["violations"] });
    const line = ({ impact, id, nodes }) => `${impact}: ${id}, ${nodes.length} times, first ${nodes[0].html.slice(0, 120)}`;
    return { passes: passes.length, lines: violations.map(line) };
  });
  await tab.close();
  const what = `${scheme}, ${width} px, ${unfolded ? "unfolded" : "as it opens"}, ${height} px high`;
  console.log(`${what}: ${found.passes} rules pass, ${found.lines.length} do not`);
  [...errors, ...requests, ...found.lines].forEach((line) => console.log(`  ${line}`));
  if (wide > 0) console.log(`  ${wide} px wider than the window`);
  const serious = found.lines.some((line) => /^(serious|critical)/.test(line));
  return errors.length + requests.length > 0 || serious || wide > 0;
}

(async () => {
  const browser = await puppeteer.launch({
    executablePath: process.env.CHROMIUM,
    args: ["--no-sandbox", "--disable-gpu"],
    protocolTimeout: 1800000,
  });
  let failed = false;
  for (const unfolded of [false, true])
    for (const scheme of ["light", "dark"])
      for (const width of [1400, 420]) failed = (await look(browser, scheme, width, unfolded)) || failed;
  const wrong = await laboratory(browser, page, shots);
  if (process.env.PROBE) wrong.push(...(await explore(browser, shots)));
  wrong.forEach((line) => console.log(`  ${line}`));
  const size = fs.statSync(page).size;
  console.log(`${(size / 1e6).toFixed(2)} MB`);
  failed = failed || wrong.length > 0;
  await browser.close();
  process.exit(failed ? 1 : 0);
})();
