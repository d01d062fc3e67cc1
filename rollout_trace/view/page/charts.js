// Small charts of many trajectories. A click on a bar, or a drag over several, calls back with the range.
RT.charts = (() => {
  const { el, svg, number, count } = RT.dom;
  const WIDTH = 200;
  const HEIGHT = 64;

  function card(title, figure, picture, ...below) {
    return el("figure", { class: "chart card" },
      el("figcaption", {}, el("h2", {}, title), figure && el("span", { class: "num soft" }, figure)), picture, below);
  }

  function nothing(title, why) {
    return card(title, null, el("p", { class: "none soft" }, why));
  }

  const picture = (label, ...children) => svg("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "group", "aria-label": label,
  }, children);

  const ends = (low, high) => el("div", { class: "ends num soft", "aria-hidden": "true" }, el("span", {}, low), el("span", {}, high));

  let brushing = false;

  /** Lets the reader choose from the first to the last of n equal stretches of `node`'s width, by pointer. */
  function brushed(node, n, mark, choose) {
    let first = null;
    let last = null;
    const at = (event) => {
      const box = node.getBoundingClientRect();
      return Math.max(0, Math.min(n - 1, Math.floor(((event.clientX - box.left) / box.width) * n)));
    };
    const span = () => [Math.min(first, last), Math.max(first, last)];
    node.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      first = last = at(event);
      brushing = true;
      node.setPointerCapture(event.pointerId);
      mark(...span());
    });
    node.addEventListener("pointermove", (event) => {
      if (first === null) return;
      last = at(event);
      mark(...span());
    });
    node.addEventListener("pointerup", () => {
      if (first === null) return;
      const chosen = span();
      first = null;
      brushing = false;
      mark(-1, -1);
      choose(...chosen);
    });
    node.addEventListener("pointercancel", () => {
      first = null;
      brushing = false;
      mark(-1, -1);
    });
  }

  /** Of several bars one is in the order of the tab key; arrows go on from it, Enter and Space choose. */
  function byKeys(bars, choose) {
    bars.forEach((bar, i) => {
      bar.setAttribute("tabindex", i === 0 ? "0" : "-1");
      bar.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (step) {
          const next = bars[Math.max(0, Math.min(bars.length - 1, i + step))];
          bar.setAttribute("tabindex", "-1");
          next.setAttribute("tabindex", "0");
          next.focus();
        } else if (event.key === "Enter" || event.key === " ") {
          choose(i);
        } else {
          return;
        }
        event.preventDefault();
        event.stopPropagation();
      });
    });
  }

  /** The largest value that the bars up to one can hold: of whole numbers the one below the next edge. */
  const top = ({ edges, whole }, bar) => edges[bar + 1] - (whole ? 1 : 0);

  /** "0.5", "0 to 0.1", and of whole numbers "3", "3 to 5": the values of the stretch from one bar to another. */
  function rangeText(data, first, last, format) {
    const [low, high] = [data.edges[first], top(data, last)];
    return low === high ? format(low) : `${format(low)} to ${format(high)}`;
  }

  /** A distribution. `data` = {edges, counts}; `choose(low, high, closed)` gets the range of the bars that were chosen. */
  function histogram({ title, data, figure, format = number, choose }) {
    const { edges, counts } = data || { edges: [], counts: [] };
    if (!counts.length) return nothing(title, "not recorded");
    const most = Math.max(...counts, 1);
    const width = WIDTH / counts.length;
    const gap = Math.min(1.5, width * 0.15);
    const done = (first, last) => choose(edges[first], top(data, last), data.whole || last === counts.length - 1);
    const bars = counts.map((n, i) => {
      const height = n ? Math.max(2, (n / most) * (HEIGHT - 4)) : 0;
      const label = `${rangeText(data, i, i, format)}: ${count(n)}`;
      return svg("g", { class: "bar", role: "button", "aria-label": `${title} ${label}`, data: { name: `${title} ${i}` } },
        svg("title", {}, label),
        svg("rect", { class: "hit", x: i * width, y: 0, width, height: HEIGHT }),
        svg("rect", { class: "value", x: i * width + gap / 2, y: HEIGHT - height, width: Math.max(0.5, width - gap), height }));
    });
    const drawn = picture(`${title}, ${counts.length} bars`, bars);
    brushed(drawn, counts.length, (a, b) => bars.forEach((bar, i) => bar.classList.toggle("on", i >= a && i <= b)), done);
    byKeys(bars, (i) => done(i, i));
    const [low, high] = [edges[0], top(data, counts.length - 1)];
    return card(title, figure, drawn, ends(format(low), low === high ? "" : format(high)));
  }

  /** The mean of each tenth of the points before and around each one. */
  function smooth(points) {
    const reach = Math.max(1, Math.floor(points.length / 20));
    const sums = [0];
    for (const [, y] of points) sums.push(sums[sums.length - 1] + y);
    return points.map(([x], i) => {
      const [low, high] = [Math.max(0, i - reach), Math.min(points.length, i + reach + 1)];
      return [x, (sums[high] - sums[low]) / (high - low)];
    });
  }

  /** Values over time as points with their moving mean. `points` = [[time, value], ...], sorted. */
  function overTime({ title, points, figure, format, choose }) {
    if (points.length < 2 || points[0][0] === points[points.length - 1][0]) return nothing(title, "fewer than two times");
    const [begin, end] = [points[0][0], points[points.length - 1][0]];
    const values = points.map(([, y]) => y);
    const low = values.reduce((a, b) => Math.min(a, b));
    const high = values.reduce((a, b) => Math.max(a, b));
    const x = (t) => ((t - begin) / (end - begin)) * (WIDTH - 6) + 3;
    const y = (v) => HEIGHT - 4 - (high > low ? (v - low) / (high - low) : 0.5) * (HEIGHT - 8);
    const at = ([t, v]) => `${x(t).toFixed(1)} ${y(v).toFixed(1)}`;
    const band = svg("rect", { class: "band", x: 0, y: 0, width: 0, height: HEIGHT });
    const drawn = picture(`${title}, from ${number(low)} to ${number(high)}`, band,
      svg("path", { class: "points", d: points.map((p) => `M${at(p)}h0`).join("") }),
      svg("path", { class: "mean", d: smooth(points).map((p, i) => (i ? "L" : "M") + at(p)).join("") }));
    const steps = 100;
    const time = (i) => begin + ((i / steps) * WIDTH - 3) / (WIDTH - 6) * (end - begin);
    brushed(drawn, steps, (a, b) => {
      band.setAttribute("x", (a / steps) * WIDTH);
      band.setAttribute("width", a < 0 ? 0 : ((b + 1 - a) / steps) * WIDTH);
    }, (a, b) => b > a && choose(Math.floor(time(a)), Math.ceil(time(b + 1)), true));
    return card(title, figure, drawn, ends(format(begin), format(end)));
  }

  return { histogram, overTime, busy: () => brushing };
})();
