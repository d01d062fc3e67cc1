// Small charts. Those of many trajectories call back with the range of a click on a bar, or of a drag over several.
RT.charts = (() => {
  const WIDTH = 200;
  const HEIGHT = 64;

  const card = (title, ...children) =>
    el("figure.chart.card", el("figcaption", el("h2", title)), children);

  const nothing = (title, why) => card(title, el("p.none.soft", why));

  const picture = (width, height, label, ...children) => svg("svg", {
    viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "group", "aria-label": label,
  }, children);

  const ends = (low, high) =>
    el("div.ends.num.soft", { "aria-hidden": "true" }, el("span", low), el("span", high));

  /** A bar over the whole height, with what is drawn in it. */
  const bar = (attributes, title, x, width, height, ...shapes) => svg("g.bar", { role: "button", ...attributes },
    svg("title", title), svg("rect.hit", { x, y: 0, width, height }), shapes);

  let brush = null; // the first and the latest of the stretches that a drag is over

  /** Lets the reader choose from the first to the last of n equal stretches of `node`'s width, by pointer. */
  function brushed(node, n, mark, choose) {
    const at = (event) => {
      const box = node.getBoundingClientRect();
      return Math.max(0, Math.min(n - 1, Math.floor(((event.clientX - box.left) / box.width) * n)));
    };
    const span = () => [Math.min(...brush), Math.max(...brush)];
    const end = () => {
      brush = null;
      mark(-1, -1);
    };
    node.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      brush = [at(event), at(event)];
      node.setPointerCapture(event.pointerId);
      mark(...span());
    });
    node.addEventListener("pointermove", (event) => {
      if (!brush) return;
      brush[1] = at(event);
      mark(...span());
    });
    node.addEventListener("pointerup", () => {
      if (!brush) return;
      const chosen = span();
      end();
      choose(...chosen);
    });
    node.addEventListener("pointercancel", end);
  }

  /** Of several bars one is in the order of the tab key; arrows go on from it, Enter and Space choose. */
  function byKeys(bars, choose) {
    bars.forEach((one, i) => {
      one.setAttribute("tabindex", i === 0 ? "0" : "-1");
      one.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step && event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        event.stopPropagation();
        if (!step) return void choose(i);
        const next = bars[Math.max(0, Math.min(bars.length - 1, i + step))];
        one.setAttribute("tabindex", "-1");
        next.setAttribute("tabindex", "0");
        next.focus();
      });
    });
  }

  /** The largest value that the bars up to one can hold: of whole numbers the one below the next edge. */
  const top = ({ edges, whole }, at) => edges[at + 1] - (whole ? 1 : 0);

  /** "0.5", "0 to 0.1", and of whole numbers "3", "3 to 5": the values of a bar. */
  function rangeText(data, at, format) {
    const [low, high] = [data.edges[at], top(data, at)];
    return low === high ? format(low) : `${format(low)} to ${format(high)}`;
  }

  /** A distribution. `data` = {edges, counts}; `choose(low, high, closed)` gets the range of the chosen bars. */
  function histogram({ title, data, format, choose }) {
    const { edges, counts } = data;
    if (!counts.length) return nothing(title, "not recorded");
    const width = WIDTH / counts.length;
    const gap = Math.min(1.5, width * 0.15);
    const done = (first, last) => choose(edges[first], top(data, last), data.whole || last === counts.length - 1);
    const bars = counts.map((n, i) => {
      const height = n ? Math.max(2, (n / most(counts)) * (HEIGHT - 4)) : 0;
      const label = `${rangeText(data, i, format)}: ${count(n)}`;
      const names = { "aria-label": `${title} ${label}`, data: { name: `${title} ${i}` } };
      return bar(names, label, i * width, width, HEIGHT,
        svg("rect.value", { x: i * width + gap / 2, y: HEIGHT - height, width: Math.max(0.5, width - gap), height }));
    });
    const drawn = picture(WIDTH, HEIGHT, `${title}, ${counts.length} bars`, bars);
    const mark = (a, b) => bars.forEach((one, i) => one.classList.toggle("on", i >= a && i <= b));
    brushed(drawn, counts.length, mark, done);
    byKeys(bars, (i) => done(i, i));
    const [low, high] = [edges[0], top(data, counts.length - 1)];
    return card(title, drawn, ends(format(low), low === high ? "" : format(high)));
  }

  /** The mean of each tenth of the points before and around each one. */
  function smooth(points) {
    const reach = Math.max(1, Math.floor(points.length / 20));
    const sums = [0];
    for (const [, y] of points) sums.push(sums.at(-1) + y);
    return points.map(([x], i) => {
      const [low, high] = [Math.max(0, i - reach), Math.min(points.length, i + reach + 1)];
      return [x, (sums[high] - sums[low]) / (high - low)];
    });
  }

  /** Values over time as points with their moving mean. `points` = [[time, value], ...], sorted. */
  function overTime({ title, points, format, choose }) {
    if (points.length < 2 || points[0][0] === points.at(-1)[0]) return nothing(title, "fewer than two times");
    const [begin, end] = [points[0][0], points.at(-1)[0]];
    const values = points.map(([, y]) => y);
    const [low, high] = [least(values), most(values)];
    const x = (t) => ((t - begin) / (end - begin)) * (WIDTH - 6) + 3;
    const y = (v) => HEIGHT - 4 - (high > low ? (v - low) / (high - low) : 0.5) * (HEIGHT - 8);
    const at = ([t, v]) => `${x(t).toFixed(1)} ${y(v).toFixed(1)}`;
    const band = svg("rect.band", { x: 0, y: 0, width: 0, height: HEIGHT });
    const drawn = picture(WIDTH, HEIGHT, `${title}, from ${number(low)} to ${number(high)}`, band,
      svg("path.points", { d: points.map((p) => `M${at(p)}h0`).join("") }),
      svg("path.mean", { d: smooth(points).map((p, i) => (i ? "L" : "M") + at(p)).join("") }));
    const steps = 100;
    const timeOf = (i) => begin + ((i / steps) * WIDTH - 3) / (WIDTH - 6) * (end - begin);
    brushed(drawn, steps, (a, b) => {
      band.setAttribute("x", (a / steps) * WIDTH);
      band.setAttribute("width", a < 0 ? 0 : ((b + 1 - a) / steps) * WIDTH);
    }, (a, b) => b > a && choose(Math.floor(timeOf(a)), Math.ceil(timeOf(b + 1)), true));
    return card(title, drawn, ends(format(begin), format(end)));
  }

  /** The ratio of the trainer's probabilities to the engine's, over the sampled tokens of a trajectory, for the side;
   *  null where no token has both. `go(step, token)` is called with what was chosen. */
  function ratios(bins, go) {
    if (!bins.length) return null;
    const [WIDE, HIGH] = [320, 110];
    // Both sides of 1 alike, and at least one per cent of it.
    const reach = most([0.01, ...bins.flatMap(([, , , low, high]) => [-low, high])]);
    const width = WIDE / bins.length;
    const y = (log) => HIGH / 2 - (log / reach) * (HIGH / 2 - 4);
    const bars = bins.map(([step, token, middle, low, high], i) => {
      const [usual, from, to] = [middle, low, high].map(ratio);
      const label = `step ${count(step)}, token ${count(token)}: ratio ${usual}, from ${from} to ${to}`;
      const height = Math.max(1, y(low) - y(high));
      const one = bar({ "aria-label": label }, label, i * width, width, HIGH,
        svg("rect.range", { x: i * width + width / 4, y: y(high), width: width / 2, height }),
        svg("rect.value", { x: i * width, y: y(middle) - 1.5, width, height: 3 }));
      one.addEventListener("click", () => go(step, token));
      return one;
    });
    byKeys(bars, (i) => go(bins[i][0], bins[i][1]));
    return section("Ratio, trainer to engine",
      el("div.ratios",
        el("div.marks.num.soft", { "aria-hidden": "true" }, [reach, 0, -reach].map((log) => el("span", ratio(log)))),
        picture(WIDE, HIGH, `ratio over ${bins.length} stretches of tokens`,
          svg("path.even", { d: `M0 ${HIGH / 2}H${WIDE}` }), bars)),
      el("p.soft", "Mean and range, over the sampled tokens in their order. A stretch leads to its first token."));
  }

  return { histogram, overTime, ratios, busy: () => brush !== null };
})();
