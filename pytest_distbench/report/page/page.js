"use strict";
(() => {
  // Elements: text always becomes a text node, so that nothing of a test or a file is ever markup.
  const NS = "http://www.w3.org/2000/svg";
  const fill = (node, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) {
      if (typeof value === "function") node.addEventListener(name, value);
      else if (value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.flat(2).filter((child) => child !== undefined && child !== ""));
    return node;
  };
  const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const shape = (tag, attributes = {}, ...children) => fill(document.createElementNS(NS, tag), attributes, children);

  // Numbers, as the rest of distbench writes them.
  const digits = (value, most = 4) => {
    const size = Math.abs(value);
    if (Number.isInteger(value) && size < 1e15) return value.toLocaleString("en-US");
    const short = Number(value.toPrecision(most));
    return size < 1e-4 ? short.toExponential() : String(short);
  };
  const TIMES = [
    [1, "s"],
    [1e-3, "ms"],
    [1e-6, "us"],
    [1e-9, "ns"],
  ];
  const SIZES = [
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
    [1, "B"],
  ];
  const scaled = (value, units) => {
    const [factor, name] = units.find(([factor]) => Math.abs(value) >= factor * 0.99999) ?? units[0];
    return `${digits(value / factor)} ${name}`;
  };
  const format = (value, unit) => {
    if (value === null || value === undefined) return "-";
    if (unit === "s") return scaled(value, TIMES);
    if (unit === "B") return scaled(value, SIZES);
    if (unit === "B/s") return `${digits(value / 1e9)} GB/s`;
    if (unit === "%") return `${digits(value * 100, 4)} %`;
    if (unit === "date") return new Date(value * 1000).toISOString().slice(0, 16).replace("T", " ");
    return `${digits(value)} ${unit ?? ""}`.trimEnd();
  };
  const DAY = 86400;
  const SPANS = [60, 600, 3600, 6 * 3600, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY, 56 * DAY, 91 * DAY, 182 * DAY, 364 * DAY];
  // Ticks of one axis, in one unit where they are evenly spaced.
  const tickText = (axis, ticks) => {
    if (axis.ticks) return (tick) => axis.ticks[tick] ?? "";
    if (axis.unit === "date") {
      const isOfDays = ticks.every((tick) => tick % DAY === 0);
      return (tick) => (isOfDays ? format(tick, "date").slice(0, 10) : format(tick, "date").slice(5));
    }
    if (axis.unit !== "s" || axis.scale) return (tick) => format(tick, axis.unit);
    const most = Math.max(...ticks.map(Math.abs));
    const [factor, name] = TIMES.find(([factor]) => most >= factor * 0.99999) ?? TIMES[0];
    return (tick) => `${digits(tick / factor)} ${name}`;
  };
  const percent = (ratio) => `${ratio >= 1 ? "+" : ""}${((ratio - 1) * 100).toFixed(1)} %`;
  const median = (values) => {
    const ordered = [...values].sort((a, b) => a - b);
    const middle = ordered.length >> 1;
    return ordered.length % 2 ? ordered[middle] : (ordered[middle - 1] + ordered[middle]) / 2;
  };

  // What is drawn when it comes near the screen.
  const waiting = new Map();
  const drawNow = (node) => {
    const draw = waiting.get(node);
    waiting.delete(node);
    seen.unobserve(node);
    draw?.();
  };
  const seen = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => drawNow(entry.target)),
    { rootMargin: "500px" },
  );
  const whenSeen = (node, draw) => {
    waiting.set(node, draw);
    seen.observe(node);
    return node;
  };
  const inPieces = (parent, items, make, size) => {
    const more = (from) => {
      parent.append(...items.slice(from, from + size).map(make));
      if (from + size < items.length) {
        const end = el(
          parent.tagName === "TBODY" ? "tr" : "div",
          {},
          parent.tagName === "TBODY" ? el("td", {}, "…") : "…",
        );
        parent.append(end);
        whenSeen(end, () => {
          end.remove();
          more(from + size);
        });
      }
    };
    more(0);
    return parent;
  };
  const table = (head, right, rows, foot = [], classes = []) => {
    const side = (i) => (right[i] ? { class: "r" } : {});
    const line = (cells) =>
      el(
        "tr",
        classes.length ? { class: classes[rows.indexOf(cells)] } : {},
        cells.map((cell, i) => el("td", side(i), cell)),
      );
    const body = inPieces(el("tbody"), rows, line, 200);
    const top = el(
      "thead",
      {},
      el(
        "tr",
        {},
        head.map((text, i) => el("th", { scope: "col", ...side(i) }, text)),
      ),
    );
    return [
      el("div", { class: "scroll", tabindex: "0" }, el("table", {}, top, body)),
      foot.length ? el("pre", { class: "foot" }, foot.join("\n")) : "",
    ];
  };

  // Axes.
  const nice = (lo, hi, most, isWhole = false) => {
    const steps = [1, 2, isWhole ? 5 : 2.5, 5, 10].map((s) => s * 10 ** Math.floor(Math.log10((hi - lo) / most)));
    const step = Math.max(
      steps.find((s) => (hi - lo) / s <= most),
      isWhole ? 1 : 0,
    );
    const first = Math.ceil(lo / step - 1e-9);
    return Array.from({ length: Math.floor(hi / step + 1e-9) - first + 1 }, (_, i) =>
      Number(((first + i) * step).toPrecision(12)),
    );
  };
  const ticks = (axis, lo, hi, most, isWhole = false) => {
    if (axis.scale === "log2" || axis.scale === "log") {
      const base = axis.scale === "log2" ? 2 : 10;
      const power = (value) => Math.log(value) / Math.log(base);
      const first = Math.ceil(power(lo) - 1e-9),
        last = Math.floor(power(hi) + 1e-9);
      const stride = Math.max(1, Math.ceil((last - first + 1) / most));
      const found = [];
      for (let k = Math.ceil(first / stride) * stride; k <= last; k += stride) found.push(base ** k);
      for (const multiples of base === 10 && found.length < 4 ? [[1, 2, 5], [1, 3]] : []) {
        const finer = [];
        for (let k = first - 1; k <= last; k++)
          for (const m of multiples) if (m * 10 ** k >= lo && m * 10 ** k <= hi) finer.push(m * 10 ** k);
        if (finer.length > 1 && finer.length <= most) return finer.map((tick) => Number(tick.toPrecision(3)));
      }
      if (found.length > 1) return found;
    }
    if (axis.unit === "date") {
      const step = SPANS.find((span) => (hi - lo) / span <= most) ?? 10 * 364 * DAY;
      const first = Math.ceil(lo / step);
      return Array.from({ length: Math.floor(hi / step) - first + 1 }, (_, i) => (first + i) * step);
    }
    const unit = axis.unit === "B" ? (SIZES.find(([factor]) => hi >= factor) ?? [1])[0] : 1;
    return nice(lo / unit, hi / unit, most, isWhole).map((tick) => tick * unit);
  };
  const scaleOf = (axis, lo, hi, from, to) => {
    const at = axis.scale ? Math.log : (value) => value;
    const a = at(lo),
      b = at(hi);
    return (value) => from + ((at(value) - a) / (b - a || 1)) * (to - from);
  };
  const extent = (values, axis) => {
    const usable = axis.scale ? values.filter((value) => value > 0) : values;
    let lo = Math.min(...usable),
      hi = Math.max(...usable);
    if (axis.scale) {
      const room = lo === hi ? 1.5 : (hi / lo) ** 0.06;
      return [lo / room, hi * room];
    }
    if (axis.from_zero) lo = Math.min(0, lo);
    const room = (hi - lo || Math.abs(hi) || 1) * 0.06;
    return [axis.from_zero && !lo ? 0 : lo - room, hi + room];
  };
  // All but a few that lie so far from the others that they would flatten them.
  const withoutFar = (values, share, least) => {
    const middle = median(values);
    const far = values.map((value) => Math.abs(value - middle)).sort((a, b) => a - b);
    const first = Math.max(1, far.length - Math.max(1, Math.floor(far.length * share)));
    const end = far.findIndex((distance, i) => i >= first && distance > 3 * Math.max(far[i - 1], least));
    return end < 0 ? values : values.filter((value) => Math.abs(value - middle) < far[end]);
  };
  // A number stays with its unit where a text is wrapped.
  const tight = (text) => text.replace(/(\d) (?=[^\d\s])/g, "$1\u00a0");
  const wide = (text) => text.length * 6.7;

  // A figure: the drawing, a line that reads it out for pointers and arrow keys, and its values as a table.
  const HEIGHT = 250;
  const figure = (title, legend, draw, values, isWide) => {
    const readout = el("output", { class: "readout", "aria-live": "polite" });
    const place = el("div");
    const node = el("figure", { class: isWide ? "wide" : "" }, el("figcaption", {}, title, readout), legend, place);
    let width = 0;
    const redraw = () => {
      const now = Math.floor(place.clientWidth);
      if (!now || now === width) return;
      width = now;
      const marks = [];
      const svg = shape("svg", { role: "img", "aria-label": `${title}. Arrow keys read the points.`, tabindex: "0" });
      const height = draw(svg, width, marks);
      fill(svg, { viewBox: `0 0 ${width} ${height}`, width, height }, []);
      listen(svg, marks, readout);
      place.replaceChildren(svg);
    };
    whenSeen(place, () => {
      redraw();
      new ResizeObserver(redraw).observe(place);
    });
    const details = el("details", { class: "values" }, el("summary", {}, "values"));
    details.addEventListener("toggle", () => details.append(...table(...values()).filter(Boolean)), { once: true });
    node.append(details);
    return node;
  };
  const listen = (svg, marks, readout) => {
    const ring = shape("circle", { class: "ring hidden", r: 7 });
    svg.append(ring);
    let chosen = -1;
    const choose = (index) => {
      chosen = Math.max(0, Math.min(marks.length - 1, index));
      const mark = marks[chosen];
      if (!mark) return;
      fill(ring, { cx: mark.x, cy: mark.y, class: "ring" }, []);
      readout.textContent = mark.text;
    };
    const hide = () => {
      ring.setAttribute("class", "ring hidden");
      readout.textContent = "";
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const factor = svg.viewBox.baseVal.width / box.width;
      const x = (event.clientX - box.left) * factor,
        y = (event.clientY - box.top) * factor;
      const far = (mark) => (mark.x - x) ** 2 + (mark.y - y) ** 2;
      let best = 0;
      marks.forEach((mark, i) => {
        if (far(mark) < far(marks[best])) best = i;
      });
      choose(best);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
      if (!(event.key in steps) || !marks.length) return;
      event.preventDefault();
      choose(chosen < 0 ? 0 : chosen + steps[event.key]);
    });
  };
  const legendOf = (entries) =>
    entries.length < 2 && !entries.some(([, , isNamed]) => isNamed)
      ? ""
      : el(
          "ul",
          { class: "legend" },
          entries.map(([name, sample]) => el("li", {}, sample, name)),
        );
  const sample = (colour, part) => shape("svg", { class: colour, viewBox: "0 0 22 10", "aria-hidden": "true" }, part);

  // The kinds of charts.
  const axes = (svg, chart, box, x, y, xTicks, yTicks) => {
    const xText = tickText(chart.x, xTicks),
      yText = tickText(chart.y, yTicks);
    for (const tick of yTicks) {
      svg.append(shape("line", { class: "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }));
      svg.append(shape("text", { x: box.left - 6, y: y(tick) + 4, "text-anchor": "end" }, yText(tick)));
    }
    for (const tick of xTicks) {
      svg.append(shape("line", { class: "axis", x1: x(tick), x2: x(tick), y1: box.bottom, y2: box.bottom + 4 }));
      svg.append(shape("text", { x: x(tick), y: box.bottom + 17, "text-anchor": "middle" }, xText(tick)));
    }
    svg.append(shape("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
    svg.append(shape("text", { x: 0, y: 11 }, chart.y.name));
    svg.append(shape("text", { x: box.right, y: box.bottom + 34, "text-anchor": "end" }, chart.x.name));
  };
  // Where a text beside a point covers neither another text nor a point; undefined: nowhere, and the readout has it.
  const placer = (box, dots) => {
    const taken = dots.map(([px, py]) => [px - 4, py - 4, px + 4, py + 4]);
    return (px, py, text) => {
      const w = wide(text);
      const spots = [
        [px - w / 2, py - 8],
        [px - w / 2, py + 18],
        [px + 8, py + 4],
        [px - 8 - w, py + 4],
      ];
      for (const [left, bottom] of spots) {
        const own = [left, bottom - 11, left + w, bottom + 2];
        const isInside = own[0] >= box.left && own[1] >= 0 && own[2] <= box.right + 14 && own[3] <= box.bottom + 6;
        const isCovered = (other) => own[0] < other[2] && other[0] < own[2] && own[1] < other[3] && other[1] < own[3];
        if (!isInside || taken.some(isCovered)) continue;
        taken.push(own);
        return { x: left, y: bottom };
      }
    };
  };
  // In the place of a dot that lies beyond the axis.
  const TURNS = { right: 0, down: 90, left: 180, up: 270 };
  const arrow = (x, y, to, look = "") =>
    shape("path", { class: `dot ${look}`, d: "M5 0l-9 -5v10z", transform: `translate(${x} ${y}) rotate(${TURNS[to]})` });
  const lines = (chart) => {
    const series = chart.series;
    const main = series.filter((one) => one.look !== "thin" && one.look !== "reference");
    const colour = new Map();
    series.forEach((one) => {
      const own = main.indexOf(one);
      const of = main.findIndex((other) => one.name.startsWith(other.name) && one !== other);
      colour.set(
        one,
        one.look === "reference" ? (of >= 0 && main.length > 1 ? `c${of % 8}` : "cbase") : `c${Math.max(0, own) % 8}`,
      );
    });
    const thin = series.filter((one) => one.look === "thin");
    const legend = [...main, ...thin.slice(0, 1), ...series.filter((one) => one.look === "reference")].map((one) => [
      one.look === "thin" ? `${thin.length} launches` : one.name,
      sample(
        colour.get(one),
        one.look === "dots"
          ? shape("circle", { class: "dot", cx: 11, cy: 5, r: 3.5 })
          : shape("path", { class: `line ${one.look ?? ""}`, d: "M0 5H22" }),
      ),
    ]);
    if (chart.allowed)
      legend.push(["accepted", sample("c0", shape("rect", { class: "band", width: 22, height: 10 })), true]);
    if (chart.target !== undefined)
      legend.push([
        `target ${format(chart.target, chart.y.unit)}`,
        sample("c0", shape("path", { class: "target", d: "M0 5H22" })),
        true,
      ]);
    const draw = (svg, width, marks) => {
      const points = series.flatMap((one) => one.points);
      const band = chart.allowed ?? [];
      const [xLo, xHi] = extent(
        points.map((point) => point[0]),
        chart.x,
      );
      const all = points.map((point) => point[1]);
      const own = withoutFar(all, 0.02, 0.05 * Math.abs(median(all)));
      const most = 1.5 * Math.max(...own);
      const inside = (value) => Math.min(value, most); // a wide band does not flatten the line
      const ys = [
        ...own,
        ...band.flatMap(([, lo, hi]) => [inside(lo), inside(hi)]),
        ...(chart.target === undefined ? [] : [chart.target]),
      ];
      const isSpread = !band.length && Math.min(...ys) > 0 && Math.max(...ys) > 50 * Math.min(...ys);
      const axis = isSpread && !chart.y.scale ? { ...chart.y, scale: "log" } : chart.y;
      const [yLo, yHi] = extent(ys, axis);
      const yTicks = ticks(axis, yLo, yHi, 6);
      const left = Math.max(30, 10 + Math.max(...yTicks.map((tick) => wide(tickText(chart.y, yTicks)(tick)))));
      const box = { left, right: width - 16, top: 22, bottom: HEIGHT - 42 };
      const x = scaleOf(chart.x, xLo, xHi, box.left + 6, box.right - 6),
        place = scaleOf(axis, yLo, yHi, box.bottom, box.top);
      const isOut = (value) => value < yLo || value > yHi;
      const y = (value) => place(Math.max(yLo, Math.min(yHi, value)));
      const isWhole = !chart.x.unit && points.every(([px]) => Number.isInteger(px));
      const some = ticks(chart.x, xLo, xHi, 8, isWhole);
      const usual = Math.max(...some.map((tick) => wide(tickText(chart.x, some)(tick))));
      const xs = points.map((point) => point[0]);
      const xTicks = ticks(
        chart.x,
        xLo,
        xHi,
        Math.max(2, Math.floor((box.right - box.left) / (usual + 14))),
        isWhole,
      ).filter((tick) => !isWhole || (tick >= Math.min(...xs) && tick <= Math.max(...xs)));
      if (band.length) {
        const upper = band.map(([at, , hi]) => `${x(at)} ${y(inside(hi))}`),
          lower = band.map(([at, lo]) => `${x(at)} ${y(inside(lo))}`).reverse();
        svg.append(shape("polygon", { class: "band", points: [...upper, ...lower].join(" ") }));
      }
      axes(svg, chart, box, x, y, xTicks, yTicks);
      if (chart.target !== undefined)
        svg.append(
          shape("line", { class: "target", x1: box.left, x2: box.right, y1: y(chart.target), y2: y(chart.target) }),
        );
      const usableOf = (one) =>
        one.points.filter(([px, py]) => (!chart.x.scale || px > 0) && (!chart.y.scale || py > 0));
      const free = placer(
        box,
        series.filter((one) => one.labels).flatMap((one) => usableOf(one).map(([px, py]) => [x(px), y(py)])),
      );
      const isSparse = main.every((one) => one.points.length <= 60);
      for (const one of [...thin, ...series.filter((other) => other.look !== "thin")]) {
        const usable = usableOf(one);
        const group = shape("g", { class: colour.get(one) });
        const path = usable.map(([px, py], i) =>
          one.look === "steps" && i ? `H${x(px)}V${y(py)}` : `${i ? "L" : "M"}${x(px)} ${y(py)}`,
        );
        if (one.look !== "dots")
          group.append(
            shape("path", {
              class: `line ${one.look ?? ""}`,
              d: path.join("") + (one.look === "steps" ? `H${box.right}` : ""),
            }),
          );
        usable.forEach(([px, py], i) => {
          const isSeen = one.look === "dots" || (!one.look && isSparse);
          if (isOut(py)) group.append(arrow(x(px), y(py), py > yHi ? "up" : "down"));
          else if (isSeen) group.append(shape("circle", { class: "dot", cx: x(px), cy: y(py), r: 3.5 }));
          const label = isOut(py) && one.look !== "thin" ? format(py, chart.y.unit) : one.labels?.[i];
          const spot = label && free(x(px), y(py), label);
          if (spot) group.append(shape("text", { class: "on halo", ...spot }, label));
          if (one.look !== "thin")
            marks.push({
              x: x(px),
              y: y(py),
              text: `${one.name}, ${one.names?.[i] ?? `${chart.x.name} ${format(px, chart.x.unit)}`}: ${format(py, chart.y.unit)}`,
            });
        });
        svg.append(group);
      }
      return HEIGHT;
    };
    const values = () => [
      ["series", chart.x.name, chart.y.name],
      [false, true, true],
      series.flatMap((one) =>
        one.points.map(([px, py], i) => [
          one.name,
          one.names?.[i] ?? format(px, chart.x.unit),
          format(py, chart.y.unit),
        ]),
      ),
    ];
    return figure(chart.title, legendOf(legend), draw, values);
  };
  const rowsAt = (names, width) => {
    const longest = Math.max(...names.map(wide));
    return longest > width * 0.4 ? { left: 0, above: 16 } : { left: longest + 14, above: 0 };
  };
  const rowName = (svg, name, top, height, at) =>
    svg.append(shape("text", { class: "on", x: 0, y: at.above ? top + 12 : top + height / 2 + 4 }, name));
  const axisBelow = (svg, axis, x, lo, hi, left, right, bottom) => {
    const usual = Math.max(...nice(lo, hi, 6).map((tick) => wide(format(tick, axis.unit))));
    const shown = nice(lo, hi, Math.max(2, Math.floor((right - left) / (usual + 20))));
    const text = tickText(axis, shown);
    for (const tick of shown) {
      svg.prepend(shape("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 4, y2: bottom }));
      svg.append(shape("text", { x: x(tick), y: bottom + 16, "text-anchor": "middle" }, text(tick)));
    }
    if (axis.name) svg.append(shape("text", { x: right, y: bottom + 33, "text-anchor": "end" }, axis.name));
  };
  const bars = (chart) => {
    const colour = (i) => (chart.parts[i] === "unaccounted" ? "cbase" : `c${i % 7}`);
    const legend = chart.parts.map((part, i) => [
      part,
      sample(colour(i), shape("rect", { class: "box", width: 22, height: 10 })),
      true,
    ]);
    const draw = (svg, width, marks) => {
      const at = rowsAt(
        chart.rows.map(([name]) => name),
        width,
      );
      const hi = Math.max(...chart.rows.map(([, parts]) => parts.reduce((a, b) => a + b, 0))) || 1;
      const right = width - 16,
        each = 30 + at.above,
        x = scaleOf({}, 0, hi, at.left + 6, right);
      chart.rows.forEach(([name, parts], i) => {
        const top = 6 + i * each;
        rowName(svg, name, top, 26, at);
        let sum = 0;
        parts.forEach((part, j) => {
          const w = x(sum + part) - x(sum);
          svg.append(
            shape(
              "g",
              { class: colour(j) },
              shape("rect", { class: "box", x: x(sum), y: top + at.above, width: w, height: 24 }),
            ),
          );
          marks.push({
            x: x(sum + part / 2),
            y: top + at.above + 12,
            text: `${name}, ${chart.parts[j]}: ${format(part, chart.unit)}`,
          });
          sum += part;
        });
      });
      const bottom = 6 + chart.rows.length * each;
      axisBelow(svg, { unit: chart.unit }, x, 0, hi, at.left, right, bottom);
      return bottom + 24;
    };
    const values = () => [
      ["", ...chart.parts],
      [false, ...chart.parts.map(() => true)],
      chart.rows.map(([name, parts]) => [name, ...parts.map((part) => format(part, chart.unit))]),
    ];
    return figure(chart.title, legendOf(legend), draw, values);
  };
  const pairs = (chart) => {
    const sides = ["baseline", "candidate"];
    const colours = ["c1", "c0"];
    const legend = sides.map((side, i) => [side, sample(colours[i], shape("rect", { class: "box", width: 22, height: 10 }))]);
    const draw = (svg, width, marks) => {
      const most = Math.floor(width / 6.7);
      const isLong = (text) => text.length > most;
      const times = chart.rows.flatMap(([, , ...both]) => both);
      const room = 14 + Math.max(...times.map((time) => wide(format(time, chart.unit))));
      const hi = Math.max(...times) || 1,
        left = 12,
        right = width - room,
        each = 76,
        x = scaleOf({}, 0, hi, left, right);
      chart.rows.forEach(([name, what, ...both], i) => {
        const top = 6 + i * each;
        svg.append(shape("text", { class: "on", x: 0, y: top + 12 }, isLong(name) ? `…${name.slice(1 - most)}` : name));
        svg.append(shape("text", { x: 0, y: top + 28 }, isLong(what) ? `${what.slice(0, most - 1)}…` : what));
        both.forEach((time, side) => {
          const y = top + 34 + 16 * side,
            end = Math.max(left + 1.5, x(time)),
            text = format(time, chart.unit);
          const box = shape("rect", { class: "box", x: left, y, width: end - left, height: 14 });
          svg.append(shape("g", { class: colours[side] }, box));
          svg.append(shape("text", { class: "on", x: end + 6, y: y + 11 }, text));
          marks.push({ x: end, y: y + 7, text: `${name}, ${sides[side]}: ${text}` });
        });
      });
      const bottom = 6 + chart.rows.length * each;
      axisBelow(svg, { unit: chart.unit, name: "time of an iteration" }, x, 0, hi, left, right, bottom);
      return bottom + 40;
    };
    const values = () => [
      ["place", "what", ...sides],
      [false, false, true, true],
      chart.rows.map(([name, what, ...both]) => [name, what, ...both.map((time) => format(time, chart.unit))]),
    ];
    return figure(chart.title, [chart.note ? el("p", {}, chart.note) : "", legendOf(legend)], draw, values, true);
  };
  const spans = (chart) => {
    const kinds = [...new Set(chart.spans.map(([, , , what]) => (what.startsWith("epoch ") ? "epoch" : what)))];
    kinds.sort((a, b) => b.includes("train") - a.includes("train")); // what matters has the first colours
    const colour = (what) =>
      what.startsWith("epoch ") ? "c7" : what === "stall" ? "failure" : `c${kinds.indexOf(what) % 7}`;
    const legend = kinds.map((what) => [
      what,
      sample(colour(what === "epoch" ? "epoch " : what), shape("rect", { class: "box", width: 22, height: 10 })),
      true,
    ]);
    const draw = (svg, width, marks) => {
      const at = rowsAt(chart.rows, width);
      const times = [
        ...chart.spans.flatMap(([, begin, end]) => [begin, end]),
        ...(chart.marks ?? []).map(([when]) => when),
      ];
      const lo = Math.min(...times),
        hi = Math.max(...times),
        right = width - 16,
        top = 8;
      const x = scaleOf({}, lo, hi, at.left + 6, right),
        each = 26 + at.above,
        bottom = top + chart.rows.length * each;
      chart.rows.forEach((name, i) => rowName(svg, name, top + i * each, 22, at));
      for (const [row, begin, end, what] of chart.spans) {
        const y = top + row * each + at.above,
          w = Math.max(1.5, x(end) - x(begin));
        svg.append(
          shape(
            "g",
            { class: colour(what) },
            shape("rect", { class: "box", x: x(begin), y: y + 1, width: w, height: 20 }),
          ),
        );
        marks.push({
          x: x(begin) + w / 2,
          y: y + 11,
          text: `${chart.rows[row]}: ${what}, ${format(begin, "s")} to ${format(end, "s")} (${format(end - begin, "s")})`,
        });
      }
      for (const [when, what] of chart.marks ?? []) {
        svg.append(shape("line", { class: "mark", x1: x(when), x2: x(when), y1: 2, y2: bottom }));
        marks.push({ x: x(when), y: 6, text: `${format(when, "s")}: ${what}` });
      }
      axisBelow(
        svg,
        { unit: "s", name: (chart.marks ?? []).length ? "time; dotted lines: changes" : "time" },
        x,
        lo,
        hi,
        at.left,
        right,
        bottom,
      );
      marks.sort((a, b) => a.x - b.x);
      return bottom + 40;
    };
    const values = () => [
      ["where", "what", "from", "to"],
      [false, false, true, true],
      [
        ...chart.spans.map(([row, begin, end, what]) => [chart.rows[row], what, format(begin, "s"), format(end, "s")]),
        ...(chart.marks ?? []).map(([when, what]) => ["", what, format(when, "s"), ""]),
      ],
    ];
    return figure(chart.title, legendOf(legend), draw, values, true);
  };
  const heat = (chart) => {
    const known = chart.cells.flat().filter((cell) => cell !== null);
    const lo = Math.min(...known),
      hi = Math.max(...known);
    const draw = (svg, width, marks) => {
      const n = chart.labels.length,
        left = 12 + Math.max(...chart.labels.map(wide)),
        side = Math.min(72, (width - left - 8) / n),
        height = Math.min(side, 40);
      chart.labels.forEach((name, i) => {
        svg.append(
          shape(
            "text",
            { x: left + (i + 0.5) * side, y: 28, "text-anchor": "middle" },
            side > wide(name) ? name : String(i),
          ),
        );
        svg.append(shape("text", { x: left - 6, y: 36 + (i + 0.5) * height + 4, "text-anchor": "end" }, name));
      });
      svg.append(shape("text", { x: 0, y: 11 }, `${chart.down} (down), ${chart.across} (across)`));
      chart.cells.forEach((cells, i) =>
        cells.forEach((cell, j) => {
          if (cell === null) return;
          const x = left + j * side,
            y = 36 + i * height,
            strength = hi > lo ? (cell - lo) / (hi - lo) : 0.5;
          svg.append(
            shape(
              "g",
              { class: "c0" },
              shape("rect", {
                class: "box",
                x,
                y,
                width: side,
                height,
                "fill-opacity": (0.08 + 0.5 * strength).toFixed(2),
              }),
            ),
          );
          if (side > wide(format(cell, chart.unit)))
            svg.append(
              shape(
                "text",
                { class: "on", x: x + side / 2, y: y + height / 2 + 4, "text-anchor": "middle" },
                format(cell, chart.unit),
              ),
            );
          marks.push({
            x: x + side / 2,
            y: y + height / 2,
            text: `${chart.down} ${chart.labels[i]} ${chart.across} ${chart.labels[j]}: ${format(cell, chart.unit)}`,
          });
        }),
      );
      return 44 + n * height;
    };
    const values = () => [
      ["", ...chart.labels],
      [false, ...chart.labels.map(() => true)],
      chart.cells.map((cells, i) => [chart.labels[i], ...cells.map((cell) => format(cell, chart.unit))]),
    ];
    return figure(chart.title, "", draw, values);
  };
  const grid = (chart) => {
    const classes = (chart.changed ?? []).map((isChanged) => (isChanged ? "changed" : ""));
    return el("figure", { class: "wide" }, el("figcaption", {}, chart.title), ...table(chart.head, chart.right, chart.rows, [], classes));
  };
  const choice = (chart) => {
    const place = el("div");
    const show = (chosen) => {
      const button = (name, i) =>
        el("button", { type: "button", "aria-pressed": String(i === chosen), click: () => show(i) }, name);
      const drawn = lines(chart.charts[chosen]);
      if (chart.names.length > 1)
        drawn.querySelector("figcaption").append(el("span", { class: "bar ways" }, chart.names.map(button)));
      place.replaceChildren(drawn);
    };
    show(0);
    return place;
  };
  const CHARTS = { lines, bars, pairs, spans, heat, grid, choice };
  const isEmpty = (chart) =>
    chart.series?.every((one) => !one.points.length) ||
    [chart.spans, chart.rows, chart.cells].some((all) => all?.length === 0);
  const charts = (all) => {
    const drawn = (all ?? []).filter((chart) => !isEmpty(chart));
    return drawn.length
      ? el(
          "div",
          { class: "charts" },
          drawn.map((chart) => CHARTS[chart.type](chart)),
        )
      : "";
  };

  // Launches as dots: each metric beside the number it was compared with, or its own median.
  const MOST_STRIPS = 24;
  const launches = (rows, other) => {
    const strips = rows
      .filter((row) => row.values.length)
      .slice(0, MOST_STRIPS)
      .map((row) => {
        const base = row.base || median(row.values);
        const beside = { ...row.others, ...(other?.[row.metric] ? { "other run": other[row.metric] } : {}) };
        return { ...row, base, isOwn: !row.base, beside };
      })
      .filter((row) => row.base && (!row.isOwn || row.values.length > 1 || Object.keys(row.beside).length));
    if (!strips.length) return "";
    const groups = ["baseline", "A/B baseline commit", "other run"].filter((name) => strips.some((row) => row.beside[name]));
    const colours = { baseline: "c1", "A/B baseline commit": "c2", "other run": "c3" };
    const legend = [
      ["a launch", sample("c0", shape("circle", { class: "dot faint", cx: 11, cy: 5, r: 4 })), true],
      [strips.every((row) => row.isOwn) ? "median" : "judged", sample("c0", shape("path", { class: "tick", d: "M11 0V10" })), true],
      ...groups.map((name) => [
        name,
        sample(colours[name], shape("circle", { class: "dot hollow", cx: 11, cy: 5, r: 4 })),
        true,
      ]),
      ...(strips.some((row) => row.allowed)
        ? [["accepted", sample("c0", shape("rect", { class: "band", width: 22, height: 10 })), true]]
        : []),
    ];
    const draw = (svg, width, marks) => {
      const at = rowsAt(
        strips.map((row) => row.text),
        width,
      );
      const shares = strips.flatMap((row) =>
        [...row.values, ...Object.values(row.beside).flat()].map((value) => value / row.base),
      );
      const limits = strips.flatMap((row) =>
        row.allowed && row.allowed < 1 ? [1 + row.allowed, 1 / (1 + row.allowed)] : [],
      );
      const reach = Math.max(...[...withoutFar(shares, 0.34, 0.2), ...limits].map((share) => Math.abs(share - 1)));
      const near = shares.filter((share) => Math.abs(share - 1) <= 2 * reach);
      const lo = Math.max(-1, Math.min(0.98, ...near, ...limits)),
        hi = Math.min(6, Math.max(1.02, ...near, ...limits));
      const room = (hi - lo) * 0.03,
        right = width - 16,
        each = 26 + at.above,
        bottom = 6 + strips.length * each;
      const inside = (share) => Math.max(lo, Math.min(hi, share));
      const x = scaleOf({}, lo - room, hi + room, at.left + 6, right);
      strips.forEach((row, i) => {
        const top = 6 + i * each,
          y = top + at.above + 12;
        rowName(svg, row.text, top, 24, at);
        if (row.allowed) {
          const least = 1 / (1 + row.allowed);
          const from = least < lo ? at.left + 6 : x(least); // beyond the axis it runs to the edge
          const to = 1 + row.allowed > hi ? right : x(1 + row.allowed);
          svg.append(shape("rect", { class: "band", x: from, y: y - 10, width: to - from, height: 20 }));
        }
        svg.append(shape("line", { class: "grid", x1: at.left + 6, x2: right, y1: y, y2: y }));
        const dots = (values, colour, look, whose) => {
          const out = [];
          values.forEach((value, j) => {
            const share = value / row.base;
            const shift = look === "hollow" ? 5 : values.length > 1 && groups.length ? -5 : 0;
            const cx = x(inside(share)),
              cy = y + shift;
            const isOut = share > hi || share < lo;
            if (isOut) out.push(share);
            const drawn = isOut
              ? arrow(cx, cy, share > hi ? "right" : "left", look)
              : shape("circle", { class: `dot ${look}`, cx, cy, r: 4 });
            svg.append(shape("g", { class: colour }, drawn));
            marks.push({
              x: x(inside(share)),
              y: y + shift,
              text: `${row.text}, ${whose} ${j + 1}: ${format(value, row.unit)}, ${percent(share)} from ${row.isOwn ? "the median" : "the baseline"}`,
            });
          });
          if (!out.length) return;
          const isRight = median(out) > hi;
          const at = { x: isRight ? x(hi) - 10 : x(lo) + 10, y: marks.at(-1).y + 4 };
          const label = { class: "on halo", "text-anchor": isRight ? "end" : "start", ...at };
          svg.append(shape("text", label, percent(median(out))));
        };
        groups.forEach((name) => dots(row.beside[name] ?? [], colours[name], "hollow", name));
        dots(row.values, "c0", "faint", "launch");
        const middle = x(inside((row.isOwn ? median(row.values) : row.now) / row.base));
        svg.append(
          shape("g", { class: "c0" }, shape("line", { class: "tick", x1: middle, x2: middle, y1: y - 9, y2: y + 9 })),
        );
      });
      svg.append(shape("line", { class: "axis", x1: x(1), x2: x(1), y1: 4, y2: bottom }));
      const change = {
        unit: "%",
        name: `change vs ${strips.every((row) => row.isOwn) ? "the median of the launches" : "baseline"}`,
      };
      axisBelow(svg, change, (tick) => x(tick + 1), lo - 1 - room, hi - 1 + room, at.left, right, bottom);
      if (near.length < shares.length) svg.append(shape("text", { x: 0, y: bottom + 33 }, "▸ beyond the axis"));
      return bottom + 40;
    };
    const values = () => [
      ["metric", "whose", "launch", "value"],
      [false, false, true, true],
      strips.flatMap((row) =>
        [["launch", row.values], ...Object.entries(row.beside)].flatMap(([whose, found]) =>
          found.map((value, i) => [
            row.text,
            whose === "launch" ? "this run" : whose,
            String(i + 1),
            format(value, row.unit),
          ]),
        ),
      ),
    ];
    return figure("Every launch", legendOf(legend), draw, values, true);
  };

  // The page.
  const COLUMNS = {
    statistic: "What both numbers are of their launches: the number that is judged",
    ratio: "This run divided by the baseline, minus 1",
    threshold: "The change that fails this time: never below the tolerance, wider with the noise and on a busier machine",
    interval: "Between which two launches the true median lies, in nine of ten runs",
    noise: "Standard deviation of the launches, as a share of their mean",
    mde: "The smallest slowdown that is detected with 90 % power (minimum detectable effect)",
    launches: "Number of launches behind this row",
  };
  const MOST_NOTES = 8;
  const MOST_ROWS = 16;
  const FIELDS = [
    "cells",
    "severity",
    "metric",
    "unit",
    "isTold",
    "reason",
    "values",
    "others",
    "base",
    "allowed",
    "now",
  ];
  const start = (page) => {
    for (const one of page.cases) {
      for (const [i, values] of one.rows.entries()) {
        const row = Object.fromEntries(values.map((value, at) => [FIELDS[at], value]));
        row.of = Object.fromEntries(page.columns.map(([name], at) => [name, row.cells[at]]));
        one.rows[i] = { ...row, text: row.of.metric, kind: row.of.verdict };
      }
      one.words = [
        one.title,
        one.nodeid,
        one.state,
        one.note ?? "",
        one.headline ?? "",
      ]
        .join("\n")
        .toLowerCase();
    }
    const [otherName, otherCases] = page.other ?? [];
    let chosen = "",
      asked = "";
    const main = document.getElementById("page");
    const severity = (state) => page.kinds[state]?.[0] ?? "plain";
    const meaning = (state) => page.kinds[state]?.[1];

    const verdicts = (one) => {
      const beside = otherCases?.[one.key];
      const told = one.rows.filter((row) => row.isTold),
        rest = one.rows.filter((row) => !row.isTold);
      const columns = page.columns
        .filter(
          ([name]) => ["mark", "metric", "verdict", "current"].includes(name) || told.some((row) => !["", "-"].includes(row.of[name])),
        )
        .map(([name, heading, side]) => [
          name,
          side,
          name === "verdict"
            ? (row) => el("span", { title: meaning(row.kind.split(",")[0]) }, row.kind)
            : name === "statistic"
            ? (row) => el("span", { title: page.statistics[row.of[name]] }, row.of[name])
            : (row) => tight(row.of[name]),
          heading,
        ]);
      if (beside) {
        const theirs = (row) => (beside[row.metric]?.length ? median(beside[row.metric]) : undefined);
        columns.push([
          "other",
          "r",
          (row) => (theirs(row) === undefined ? "" : format(theirs(row), row.unit)),
          otherName,
        ]);
        columns.push([
          "against",
          "r",
          (row) => (theirs(row) && row.values.length ? percent(median(row.values) / theirs(row)) : ""),
          "against it",
        ]);
      }
      const body = el("tbody");
      const line = (row) =>
        el(
          "tr",
          { class: row.severity },
          columns.map(([, side, text]) => el("td", { class: side }, text(row))),
        );
      const extra = (rows, what) => {
        if (!rows.length) return "";
        const button = el(
          "button",
          {
            type: "button",
            click: () => {
              body.append(...rows.map(line));
              button.remove();
            },
          },
          `${rows.length} more ${what}`,
        );
        return button;
      };
      body.append(...told.slice(0, MOST_ROWS).map(line));
      const head = el(
        "tr",
        {},
        columns.map(([name, side, , called]) =>
          el("th", { scope: "col", class: side, title: COLUMNS[name] }, called),
        ),
      );
      return one.rows.length
        ? [
            el("div", { class: "scroll", tabindex: "0" }, el("table", {}, el("thead", {}, head), body)),
            el(
              "div",
              { class: "bar" },
              extra(told.slice(MOST_ROWS), "verdicts"),
              extra(rest, "informational metrics"),
            ),
            ...reasons(told),
          ]
        : [];
    };
    const reasons = (rows) => {
      const groups = new Map();
      for (const row of rows.filter((row) => row.reason)) {
        const same = `${row.kind}: ${row.reason.replace(/[+-]?[\d.,]+(e[+-]?\d+)?/g, "")}`;
        groups.set(same, [...(groups.get(same) ?? []), row]);
      }
      return [...groups.values()]
        .slice(0, MOST_NOTES)
        .map(([first, ...more]) =>
          el("p", { class: "soft" }, `${first.text}${more.length ? ` and ${more.length} more` : ""}: ${first.reason}`),
        );
    };
    const command = (does, command) => {
      const copy = el(
        "button",
        {
          type: "button",
          click: async () => {
            try {
              await navigator.clipboard.writeText(command);
              copy.textContent = "copied";
            } catch {
              getSelection().selectAllChildren(copy.previousSibling);
            }
          },
        },
        "copy",
      );
      return el("div", { class: "command" }, el("span", { class: "soft" }, does), el("code", {}, command), copy);
    };
    const bodyOf = (one) => [
      one.headline ? el("p", { class: "headline" }, one.headline) : "",
      el("p", { class: "soft" }, el("span", { class: "id" }, one.nodeid), ` · ${one.how}`),
      ...verdicts(one),
      ...(one.notes ?? []).map((note) => el("p", { class: "soft" }, note)),
      one.story?.length ? el("pre", {}, one.story.join("\n")) : "",
      !one.command || one.story?.some((line) => line.includes(one.command)) ? "" : command("Run it again", one.command),
      one.accept ? command("Accept as baseline", one.accept) : "",
      launches(
        one.rows.filter((row) => row.isTold),
        otherCases?.[one.key],
      ),
      charts(one.charts),
    ];
    const folded = (attributes, summary, make, isOpen) => {
      const body = el("div", { class: "body" });
      const node = el("details", { ...attributes, open: isOpen }, el("summary", {}, summary), body);
      const draw = () => {
        if (!body.childNodes.length) body.append(...make().filter(Boolean));
      };
      node.addEventListener("toggle", () => node.open && draw());
      return isOpen ? whenSeen(node, draw) : node;
    };
    // What a folded case says: its file, and its first number.
    const gist = (one) => {
      const told = one.rows.filter((row) => row.isTold);
      const row = told.find((row) => row.unit === "s") ?? told[0];
      const number = row ? [row.text, row.of.current, row.of.ratio].filter(Boolean).join(" ") : "";
      return [one.nodeid.split("::")[0], number].filter(Boolean).join(" · ");
    };
    const card = (one) => {
      const isBad = Boolean(one.is_first);
      const state = one.note ? `${one.state}, ${one.note}` : one.state;
      const summary = [
        el("b", {}, one.title),
        el("span", { class: "soft" }, isBad ? "" : one.headline || gist(one)),
        el("span", { class: `state ${one.severity}`, title: meaning(one.state) }, `${one.mark} ${state}`.trim()),
      ];
      return folded({ class: isBad ? "card bad" : "card" }, summary, () => bodyOf(one), isBad);
    };

    const list = el("section"),
      count = el("span", { class: "soft", role: "status" });
    const show = () => {
      const words = asked.toLowerCase().split(/\s+/).filter(Boolean);
      const found = page.cases.filter(
        (one) => (!chosen || one.state === chosen) && words.every((word) => one.words.includes(word)),
      );
      const bad = found.filter((one) => one.is_first),
        rest = found.filter((one) => !one.is_first);
      const part = (title, cases) =>
        cases.length
          ? [el("h2", {}, title, " ", el("small", {}, String(cases.length))), inPieces(el("div"), cases, card, 100)]
          : [];
      list.replaceChildren(...part(page.headings[0], bad), ...part(page.headings[1], rest));
      count.textContent = found.length === page.cases.length ? "" : `${found.length} of ${page.cases.length}`;
      for (const chip of chips.children) chip.setAttribute("aria-pressed", String(chip.dataset.state === chosen));
    };
    const chips = el(
      "div",
      { class: "bar chips" },
      Object.entries(page.counts).map(([state, number]) =>
        el(
          "button",
          {
            type: "button",
            class: `chip ${severity(state)}`,
            "data-state": state,
            title: meaning(state),
            click: () => {
              chosen = chosen === state ? "" : state;
              show();
            },
          },
          el("b", {}, String(number)),
          el("span", {}, state),
        ),
      ),
    );
    const search = el("input", {
      type: "search",
      placeholder: "Search tests, verdicts",
      "aria-label": "Search",
      input: () => {
        asked = search.value;
        show();
      },
    });
    addEventListener("keydown", (event) => {
      if (event.key === "/" && document.activeElement !== search) {
        event.preventDefault();
        search.focus();
      }
    });

    // Themes.
    const THEMES = ["auto", "light", "dark"];
    const keep = (theme) => {
      try {
        localStorage.setItem("distbench-theme", theme);
      } catch {
        /* a sandbox may have none */
      }
    };
    const kept = () => {
      try {
        return localStorage.getItem("distbench-theme");
      } catch {
        return null;
      }
    };
    const dress = (theme) => {
      document.documentElement.dataset.theme = theme;
      button.textContent = `Theme: ${theme}`;
    };
    const button = el("button", {
      type: "button",
      class: "theme",
      click: () => {
        const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
        dress(next);
        keep(next);
      },
    });
    dress(THEMES.includes(kept()) ? kept() : "auto");

    // Another run beside this one.
    const overview = () => {
      const moved = [];
      for (const one of page.cases) {
        for (const row of one.rows) {
          const theirs = otherCases[one.key]?.[row.metric];
          if (row.isTold && theirs?.length && row.values.length && median(theirs) > 0 && median(row.values) > 0)
            moved.push([one.title, row, median(theirs), median(row.values)]);
        }
      }
      const both = page.cases.filter((one) => otherCases[one.key]).length;
      moved.sort((a, b) => Math.abs(Math.log(b[3] / b[2])) - Math.abs(Math.log(a[3] / a[2])));
      const rows = moved
        .slice(0, 20)
        .map(([title, row, was, is]) => [
          title,
          row.text,
          format(was, row.unit),
          format(is, row.unit),
          percent(is / was),
        ]);
      return el(
        "section",
        {},
        el("h2", {}, "Compared with ", otherName, " ", el("small", {}, `${both} of ${page.cases.length} cases are in both`)),
        el(
          "p",
          { class: "soft" },
          "Medians of the launches, the largest difference first. These are no verdicts: distbench compare judges one run against another.",
        ),
        ...table(["test", "metric", "there", "here", "change"], [false, false, true, true, true], rows).filter(Boolean),
      );
    };
    const heading = main.querySelector("h1").textContent;
    const noted = (lines = []) => {
      const notes = lines.filter(([text]) => text.trim());
      if (!notes.length) return "";
      const more = notes.slice(MOST_NOTES).map(([text]) => text);
      return el(
        "div",
        { class: "notes" },
        notes.slice(0, MOST_NOTES).map(([text, severity]) => el("p", { class: severity }, text)),
        more.length
          ? el("details", {}, el("summary", {}, `${more.length} more lines`), el("pre", {}, more.join("\n")))
          : "",
      );
    };
    const facts = el(
      "dl",
      { class: "facts" },
      page.facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
    );
    const matrices = (page.above ?? []).map(([summary, one, classes]) => {
      const marked = (text) => (classes[text] ? el("span", { class: classes[text] }, text) : text);
      const rows = one.rows.map((cells) => cells.map(marked));
      const [cells, foot] = table(one.head, one.right, rows, one.foot ?? []);
      return el("section", {}, el("h2", {}, summary.replace(/\.$/, "")), cells, foot);
    });
    const tables = (page.tables ?? []).map(([summary, one, drawn]) =>
      folded(
        { class: "card" },
        [
          el("b", {}, one.title),
          el("span", { class: "soft" }, summary),
          el("span", { class: "state soft" }, `${one.rows.length} row${one.rows.length === 1 ? "" : "s"}`),
        ],
        () => [charts(drawn), ...table(one.head, one.right, one.rows, one.foot ?? [])],
        false,
      ),
    );
    main.replaceChildren(
      el(
        "div",
        { class: "bar top" },
        el("h1", {}, heading),
        button,
      ),
      chips,
      facts,
      noted(page.notes),
      ...matrices,
      otherCases ? overview() : "",
      el("div", { class: "bar search" }, search, count),
      list,
      noted(page.later),
      ...(tables.length ? [el("h2", {}, page.headings[2]), ...tables] : []),
    );
    show();
    document.documentElement.dataset.ready = "true";
  };

  const inflate = (text) => {
    const bytes = Uint8Array.from(atob(text.trim()), (character) => character.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  };
  inflate(document.getElementById("data").textContent)
    .then(start)
    .catch((error) => {
      document
        .getElementById("page")
        .prepend(el("p", { class: "failure" }, `The charts and tables cannot be shown here: ${error.message}`));
      console.error(error);
    });
})();
