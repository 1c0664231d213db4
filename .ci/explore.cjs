// Called by .ci/page: the page of `probe explore` as a reader uses it. Returns what is wrong. `PROBE` is the program.
const { spawn } = require("child_process");
const axe = require("fs").readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

module.exports = async (browser, shots) => {
  const wrong = [];
  const server = spawn(process.env.PROBE, ["explore", "fixtures/micro", "--phase", "sft"]);
  const address = await new Promise((go) => server.stdout.once("data", (text) => go(String(text).trim())));
  const tab = await browser.newPage();
  tab.on("pageerror", (error) => wrong.push(`explore: ${error}`));
  tab.on("console", (message) => message.type() === "error" && wrong.push(`explore: ${message.text()}`));
  tab.on("request", (request) => /^(data:|http:\/\/127\.0\.0\.1)/.test(request.url()) || wrong.push(`explore asks ${request.url()}`));
  for (const width of [1400, 420]) {
    await tab.setViewport({ width, height: 900 });
    await tab.goto(address);
    await tab.waitForSelector("#explore textarea");
    const areas = await tab.$$("#explore textarea");
    await areas[0].type("<bos> a = 5 ; h = a + 4 ; c = h - a ; ? c :");
    await areas[1].type("latent.hook_injected=zero");
    await tab.click('[data-key="run"]');
    await tab.waitForFunction(() => document.querySelectorAll("#explore .lab-trace").length === 2, { timeout: 60000 });
    await tab.click('[data-key^="heads as it is"]');
    await tab.waitForSelector('#explore svg[role="img"] rect[fill-opacity]');
    await tab.evaluate(axe);
    const found = await tab.evaluate(async () => (await window.axe.run(document)).violations.map(({ impact, id }) => `${impact}: ${id}`));
    found.forEach((line) => wrong.push(`explore, ${width} px: ${line}`));
    const wide = await tab.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    if (wide > 0) wrong.push(`explore, ${width} px: ${wide} px wider than the window`);
    await tab.screenshot({ path: `${shots}/explore-${width}.png`, fullPage: true });
  }
  await tab.close();
  server.kill("SIGINT");
  console.log(`explore: ${wrong.length} faults`);
  return wrong;
};
