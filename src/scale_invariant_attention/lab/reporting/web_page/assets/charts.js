// Charts drawn with uPlot: lines with markers and error bars, and the values under the pointer.
"use strict";

const charts = (() => {
  const all = [];
  // Above this number of points, markers would hide the line.
  const MARKED = 40;

  const root = document.documentElement;
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function isDark() {
    const chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function element(name, properties = {}, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  // A number with three or four significant digits.
  function shown(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
    const digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4;
    return value.toLocaleString("en", { maximumFractionDigits: digits });
  }

  // Labels of ticks, with as many digits as it takes to tell neighbours apart.
  function ticks(values) {
    const gaps = values.slice(1).map((value, i) => Math.abs(value - values[i])).filter((gap) => gap > 0);
    const digits = Math.min(20, Math.max(0, 1 + Math.ceil(-Math.log10(Math.min(1, ...gaps)))));
    return values.map((value) => {
      if (value === null) return "";
      const size = Math.abs(value);
      if (size !== 0 && size < 1e-3) return Number(value.toPrecision(3)).toExponential();
      return value.toLocaleString("en", { maximumFractionDigits: size >= 1000 ? 0 : digits });
    });
  }

  // The width of an axis whose labels stand beside it.
  const roomFor = (plot, labels) => Math.max(52, 17 + 7 * Math.max(0, ...(labels ?? []).map((it) => it.length)));

  function markers(look) {
    return (plot, series, from, to) => {
      const path = new Path2D();
      const radius = 4 * devicePixelRatio;
      const [xs, ys] = [plot.data[0], plot.data[series]];
      for (let place = from; place <= to; place++) {
        if (ys[place] == null) continue;
        const x = plot.valToPos(xs[place], "x", true);
        const y = plot.valToPos(ys[place], "y", true);
        look.marker.forEach(([dx, dy], corner) => {
          path[corner ? "lineTo" : "moveTo"](x + radius * dx, y + radius * dy);
        });
        path.closePath();
      }
      return { fill: path, stroke: null };
    };
  }

  class Chart {
    // figure: the element that contains .plot. spec: axes, panels of lines, mark. looks: by key of a line.
    constructor(figure, spec, looks) {
      Object.assign(this, { figure, spec, looks, panel: 0, hidden: new Set() });
      this.place = figure.querySelector(".plot");
      this.log = { x: spec.x.log, y: spec.y.log };
      this.status = figure.querySelector("[role=status]");
      this.tip = element("div", { className: "tip", hidden: true });
      this.tip.setAttribute("aria-hidden", "true");
      this.place.append(this.tip);
      figure.querySelectorAll("[data-control]").forEach((control) => {
        control.addEventListener("change", () => this.change(control));
      });
      this.place.addEventListener("keydown", (event) => this.key(event));
      this.place.addEventListener("blur", () => this.leave());
      const details = figure.querySelector("details.data");
      details.addEventListener("toggle", () => this.table(details));
      this.build();
      new ResizeObserver(() => this.fit()).observe(this.place);
      all.push(this);
    }

    get lines() { return this.spec.panels[this.panel].lines; }

    change(control) {
      const kind = control.dataset.control;
      if (kind === "panel") this.panel = Number(control.value);
      else this.log[kind.slice(-1)] = control.checked;
      this.build();
      this.table(this.figure.querySelector("details.data"));
    }

    // Show other values in the same lines, as a slider moves.
    update(panels) {
      this.spec.panels = panels;
      this.plot.setData(this.data());
      this.table(this.figure.querySelector("details.data"));
    }

    data() {
      const usable = (line) => {
        const kept = line.x.map((x, i) => [x, line.y[i]]).filter(
          ([x, y]) => (!this.log.x || x > 0) && (!this.log.y || y === null || y > 0));
        return [kept.map(([x]) => x), kept.map(([, y]) => y)];
      };
      // Each with its own values on the x axis.
      return uPlot.join(this.lines.map(usable));
    }

    size() {
      return { width: Math.max(200, this.place.clientWidth), height: this.place.clientHeight };
    }

    fit() {
      const { width, height } = this.size();
      if (width !== this.plot.width || height !== this.plot.height) this.plot.setSize({ width, height });
    }

    axis(name, size) {
      return {
        label: this.spec[name].label,
        labelSize: 22,
        labelFont: "13px system-ui, sans-serif",
        font: "12px system-ui, sans-serif",
        size,
        stroke: () => colour("--text"),
        grid: { stroke: () => colour("--line"), width: 1 },
        ticks: { stroke: () => colour("--line"), width: 1 },
        values: (plot, places) => ticks(places),
        ...(this.log[name] && { splits: (plot, _, low, high) => this.places(name, low, high), filter: (plot, places) => places }),
      };
    }

    // Round numbers on a logarithmic axis: powers, with multiples between them where powers are few.
    places(name, low, high) {
      const { base } = this.spec[name];
      const powers = (multiples) => {
        const found = [];
        for (let power = Math.floor(Math.log(low) / Math.log(base)); base ** power <= high; power++) {
          found.push(...multiples.map((it) => it * base ** power));
        }
        return found.filter((it) => it >= low && it <= high);
      };
      const finest = base === 2 ? [[1], [1, 1.5], [1, 1.25, 1.5, 1.75]] : [[1], [1, 2, 5], [1, 2, 3, 4, 5, 6, 8]];
      const chosen = finest.map(powers).find((it) => it.length >= 4);
      const places = chosen ?? [0, 1, 2, 3, 4].map((i) => low * (high / low) ** (i / 4));
      const room = name === "x" ? this.place.clientWidth / 60 : this.place.clientHeight / 30;
      const every = Math.ceil(places.length / room);
      return places.filter((_, i) => i % every === 0);
    }

    scale(name) {
      const { base, low, high, floor = -Infinity } = this.spec[name];
      const log = this.log[name];
      const range = (plot, from, to) => {
        if (from === null) return log ? [1, 10] : [0, 1];
        if (log) {
          const room = (to / from) ** 0.04 || 1.1;
          return from === to ? [from / 2, to * 2] : [from / room, to * room];
        }
        const room = 0.05 * (to - from) || Math.abs(to) * 0.1 || 1;
        if (name === "x") return [from - room / 2, to + room / 2];
        return [Math.max(floor, low ?? from - room), high ?? to + room];
      };
      return { time: false, distr: log ? 3 : 1, log: base, range };
    }

    build() {
      if (this.plot) this.plot.destroy();
      const series = this.lines.map((line) => {
        const look = this.looks[line.key];
        return {
          label: line.key,
          scale: "y",
          show: !this.hidden.has(line.key),
          stroke: () => look[isDark() ? "dark" : "light"],
          width: look.width,
          dash: look.dash,
          spanGaps: true,
          pxAlign: 0,
          points: {
            show: line.x.length <= MARKED,
            paths: markers(look),
            fill: () => look[isDark() ? "dark" : "light"],
          },
        };
      });
      this.plot = new uPlot({
        ...this.size(),
        legend: { show: false },
        padding: [12, 14, 0, 0],
        scales: { x: this.scale("x"), y: this.scale("y") },
        axes: [this.axis("x", 36), this.axis("y", roomFor)],
        series: [{}, ...series],
        cursor: { y: false, points: { size: 9 } },
        hooks: {
          draw: [() => this.drawErrors(), () => this.drawMark()],
          setCursor: [() => this.read()],
        },
      }, this.data(), this.place);
      this.plot.over.addEventListener("mouseleave", () => this.leave());
    }

    drawErrors() {
      const { ctx, bbox } = this.plot;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      this.lines.forEach((line) => {
        if (!line.error || this.hidden.has(line.key)) return;
        ctx.strokeStyle = this.looks[line.key][isDark() ? "dark" : "light"];
        ctx.lineWidth = 1.2 * devicePixelRatio;
        ctx.beginPath();
        line.error.forEach((error, i) => {
          if (!error || (this.log.y && line.y[i] - error <= 0) || (this.log.x && line.x[i] <= 0)) return;
          const x = this.plot.valToPos(line.x[i], "x", true);
          ctx.moveTo(x, this.plot.valToPos(line.y[i] - error, "y", true));
          ctx.lineTo(x, this.plot.valToPos(line.y[i] + error, "y", true));
        });
        ctx.stroke();
      });
      ctx.restore();
    }

    drawMark() {
      if (!this.spec.mark) return;
      const [at, name] = this.spec.mark;
      const { ctx, bbox, scales } = this.plot;
      if (at < scales.x.min || at > scales.x.max) return;
      const x = this.plot.valToPos(at, "x", true);
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = colour("--muted");
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
      ctx.textBaseline = "top";
      const left = x + ctx.measureText(name).width + 8 * devicePixelRatio > bbox.left + bbox.width;
      ctx.textAlign = left ? "right" : "left";
      ctx.fillText(name, x + (left ? -5 : 5) * devicePixelRatio, bbox.top + 2 * devicePixelRatio);
      ctx.restore();
    }

    // The values at the pointer, highest first.
    valuesAt(place) {
      return this.lines
        .map((line, i) => ({ key: line.key, value: this.plot.data[i + 1][place] }))
        .filter(({ key, value }) => value != null && !this.hidden.has(key))
        .sort((one, other) => other.value - one.value);
    }

    read() {
      const { idx, left } = this.plot.cursor;
      const values = idx == null || left < 0 ? [] : this.valuesAt(idx);
      this.tip.hidden = values.length === 0;
      if (this.tip.hidden) return;
      const x = shown(this.plot.data[0][idx]);
      const rows = values.map(({ key, value }) => {
        const name = element("th", { scope: "row", textContent: key });
        name.style.color = this.looks[key][isDark() ? "dark" : "light"];
        return element("tr", {}, name, element("td", { textContent: shown(value) }));
      });
      this.tip.replaceChildren(
        element("b", { textContent: `${this.spec.x.label}: ${x}` }),
        element("table", {}, element("tbody", {}, ...rows)));
      const offset = this.plot.over.offsetLeft + left;
      const width = this.tip.offsetWidth;
      const beside = offset + 16 + width > this.place.clientWidth ? offset - width - 16 : offset + 16;
      this.tip.style.left = `${Math.max(0, Math.min(beside, this.place.clientWidth - width))}px`;
      this.tip.style.top = "14px";
    }

    leave() {
      this.tip.hidden = true;
      this.plot.setCursor({ left: -10, top: -10 }, false);
    }

    key(event) {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") this.leave();
      if (!step) return;
      event.preventDefault();
      const places = this.plot.data[0].map((_, place) => place).filter((p) => this.valuesAt(p).length);
      const at = places.indexOf(this.plot.cursor.left < 0 ? -1 : this.plot.cursor.idx);
      const next = at < 0 ? (step > 0 ? 0 : places.length - 1) : at + step;
      if (!(next in places)) return;
      const x = this.plot.data[0][places[next]];
      this.plot.setCursor({ left: this.plot.valToPos(x, "x"), top: 1 });
      const values = this.valuesAt(places[next]).map(({ key, value }) => `${key} ${shown(value)}`);
      this.status.textContent = `${this.spec.x.label} ${shown(x)}: ${values.join(", ")}`;
    }

    toggle(key, on) {
      if (on) this.hidden.delete(key);
      else this.hidden.add(key);
      this.lines.forEach((line, i) => {
        if (line.key === key) this.plot.setSeries(i + 1, { show: on });
      });
    }

    redraw() {
      this.tip.hidden = true;
      this.plot.redraw(false, true);
    }

    table(details) {
      if (!details.open) return;
      const data = uPlot.join(this.lines.map((line) => [line.x, line.y]));
      const cell = (name, text) => element(name, { textContent: text });
      const head = element("tr", {}, cell("th", this.spec.x.label), ...this.lines.map((l) => cell("th", l.key)));
      head.childNodes.forEach((it) => { it.scope = "col"; });
      const rows = data[0].map((x, place) => {
        const first = cell("th", shown(x));
        first.scope = "row";
        return element("tr", {}, first, ...this.lines.map((_, i) => cell("td", shown(data[i + 1][place]))));
      });
      const box = element("div", { className: "scroll", tabIndex: 0 }, element(
        "table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
      box.setAttribute("role", "region");
      box.setAttribute("aria-label", this.figure.querySelector("figcaption").textContent);
      details.querySelector(".scroll")?.remove();
      details.append(box);
    }
  }

  return { Chart, all, shown, ticks };
})();
