// The controls of the page: which lines are shown, light or dark, and its height inside another page.
"use strict";

(() => {
  const data = JSON.parse(document.getElementById("page-data").textContent);
  const drawn = data.charts.map((spec) =>
    new charts.Chart(document.getElementById(spec.name), spec, { ...data.looks, ...spec.looks }));

  const switches = document.getElementById("switches");
  function turn(box) {
    drawn.forEach((chart) => chart.toggle(box.value, box.checked));
    document.querySelectorAll("[data-key]").forEach((it) => {
      if (it.dataset.key !== box.value) return;
      if (it.matches("tr")) it.classList.toggle("off", !box.checked);
      else it.hidden = !box.checked;
    });
  }
  switches?.querySelectorAll("input:not(:checked)").forEach(turn);
  switches?.addEventListener("change", ({ target }) => turn(target));
  switches?.addEventListener("click", ({ target }) => {
    if (!target.dataset.all) return;
    switches.querySelectorAll("input").forEach((box) => {
      box.checked = target.dataset.all === "on";
      turn(box);
    });
  });

  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  function themed() {
    button.textContent = isDark() ? "Light" : "Dark"; // what a click gives
    charts.all.forEach((chart) => chart.redraw());
  }
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    themed();
  });
  system.addEventListener("change", themed);
  themed();

  // Inside another page: without the header, as high as its content, in the theme of that page.
  if (parent !== window) {
    root.classList.add("framed");
    const tellHeight = () => parent.postMessage({ height: root.offsetHeight }, "*");
    new ResizeObserver(tellHeight).observe(document.body);
    addEventListener("message", ({ data, source }) => {
      if (source !== parent || !["light", "dark"].includes(data?.theme)) return;
      root.dataset.theme = data.theme;
      themed();
      tellHeight();
    });
    parent.postMessage({ ready: true }, "*");
  }

  // Paper is light, and narrower than most windows.
  let before;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    charts.all.forEach((chart) => chart.plot.setSize({ width: Math.min(640, chart.plot.width), height: 320 }));
    themed();
  });
  addEventListener("afterprint", () => {
    if (before === undefined) delete root.dataset.theme;
    else root.dataset.theme = before;
    charts.all.forEach((chart) => chart.fit());
    themed();
  });
})();
