// The explorer: sliders, and the values that they give.
"use strict";

(() => {
  const data = JSON.parse(document.getElementById("page-data").textContent);
  const POINTS = 160;
  const input = (name) => document.getElementById(name);
  const names = Object.keys(data.explorer);

  // The values of the sliders: steps on logarithmic scales, 1, 2, 5, 10 and so on for n.
  function settings() {
    const length = 2 ** input("context").value;
    return {
      tau: Number((10 ** input("tau").value).toPrecision(2)),
      length,
      recent: Math.min(length, [1, 2, 5][input("recent").value % 3] * 10 ** Math.floor(input("recent").value / 3)),
      slope: 2 ** input("slope").value,
    };
  }

  // Distances that are evenly spaced on a logarithmic axis, each once.
  function distances(length) {
    const last = Math.max(2, length - 1);
    const found = new Set([0]);
    for (let i = 0; i < POINTS; i++) found.add(Math.round(last ** (i / (POINTS - 1))));
    return [...found];
  }

  function panels(chosen) {
    const schedules = explorerMath.schedules(chosen);
    const places = distances(chosen.length);
    const decades = explorerMath.decades(chosen.length);
    // A decade is drawn at its middle on the logarithmic axis, which cannot show distance 0.
    const middles = decades.map(([start, stop]) => Math.sqrt(Math.max(1, start) * (stop - 1)));
    const lines = (x, y) => [{ label: "", lines: names.map((key) => ({ key, x, y: y(schedules[key]) })) }];
    return {
      "explorer-decades": lines(middles, (it) => explorerMath.decadeShares(it, chosen.length)),
      "explorer-gain": lines(places, (it) => places.map(it.gain)),
      "explorer-bias": lines(places, (it) => places.map(it.bias)),
    };
  }

  const AXES = {
    "explorer-decades": ["distance, one point per decade", { label: "share of the expected mass" }],
    "explorer-gain": ["distance", { label: "gain" }],
    "explorer-bias": ["distance", { label: "bias", floor: -25 }],
  };

  const made = {};

  function show() {
    const chosen = settings();
    const told = {
      tau: String(chosen.tau),
      context: chosen.length.toLocaleString("en"),
      recent: chosen.recent.toLocaleString("en"),
      slope: `1/${1 / chosen.slope}`,
    };
    Object.entries(told).forEach(([name, text]) => {
      document.querySelector(`output[for=${name}]`).textContent = text;
      input(name).setAttribute("aria-valuetext", text);
    });
    input("recent-shown").textContent = told.recent;
    const schedules = explorerMath.schedules(chosen);
    names.forEach((name) => {
      const schedule = schedules[name];
      const entropy = explorerMath.entropy(schedule, chosen.length);
      const values = {
        gain: schedule.gain(chosen.length - 1),
        bias: schedule.bias(chosen.length - 1),
        share: explorerMath.recentShare(schedule, chosen.recent, chosen.length),
        entropy,
        tokens: Math.exp(entropy),
      };
      const row = document.querySelector(`#explorer-values tr[data-scheme="${name}"]`);
      Object.entries(values).forEach(([kind, value]) => {
        const cell = row.querySelector(`[data-value=${kind}]`);
        cell.textContent = kind === "share" ? `${(100 * value).toPrecision(3)}%` : charts.shown(value);
        cell.dataset.exact = String(value);
      });
    });
    const drawn = panels(chosen);
    Object.entries(drawn).forEach(([name, lines]) => made[name]?.update(lines));
    return drawn;
  }

  Object.entries(show()).forEach(([name, lines]) => {
    const [xLabel, y] = AXES[name];
    const spec = { name, x: { label: xLabel, log: true, base: 10 }, y: { log: false, base: 10, ...y }, panels: lines };
    made[name] = new charts.Chart(input(name), spec, data.explorer);
  });
  document.getElementById("sliders").addEventListener("input", show);
  document.getElementById("sliders").addEventListener("submit", (event) => event.preventDefault());
  input("explorer-switches").addEventListener("change", ({ target }) => {
    Object.values(made).forEach((chart) => chart.toggle(target.value, target.checked));
  });
})();
