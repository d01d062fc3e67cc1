// The ratio of the trainer's probabilities to the engine's, over the sampled tokens of a trajectory.
RT.ratios = (() => {
  const { el, svg, count } = RT.dom;
  const { ratio, section } = RT.shown;
  const WIDTH = 320;
  const HEIGHT = 110;

  /** A part of the side; null where no token has both. `go(step, token)` is called with what was chosen. */
  function side(outline, go) {
    const bins = outline.ratios;
    if (!bins.length) return null;
    // Both sides of 1 alike, and at least one per cent of it.
    const most = Math.max(0.01, ...bins.map(([, , , low, high]) => Math.max(-low, high)));
    const width = WIDTH / bins.length;
    const y = (log) => HEIGHT / 2 - (log / most) * (HEIGHT / 2 - 4);
    const bars = bins.map(([step, token, mean, low, high], i) => {
      const label = `step ${count(step)}, token ${count(token)}: ratio ${ratio(mean)}, from ${ratio(low)} to ${ratio(high)}`;
      const bar = svg("g", { class: "bar", role: "button", tabindex: i ? "-1" : "0", "aria-label": label },
        svg("title", {}, label), svg("rect", { class: "hit", x: i * width, y: 0, width, height: HEIGHT }),
        svg("rect", { class: "range", x: i * width + width / 4, y: y(high), width: width / 2, height: Math.max(1, y(low) - y(high)) }),
        svg("rect", { class: "value", x: i * width, y: y(mean) - 1.5, width, height: 3 }));
      bar.addEventListener("click", () => go(step, token));
      return bar;
    });
    bars.forEach((bar, i) => bar.addEventListener("keydown", (event) => {
      const next = bars[i + ({ ArrowRight: 1, ArrowLeft: -1 }[event.key] || 0)];
      if (event.key === "Enter") go(bins[i][0], bins[i][1]);
      else if (next && next !== bar) next.focus();
      else return;
      event.preventDefault();
      event.stopPropagation();
    }));
    return section("Ratio, trainer to engine",
      el("div", { class: "ratios" },
        el("div", { class: "marks num soft", "aria-hidden": "true" }, [most, 0, -most].map((log) => el("span", {}, ratio(log)))),
        svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "group", "aria-label": `ratio over ${bins.length} stretches of tokens` },
          svg("path", { class: "even", d: `M0 ${HEIGHT / 2}H${WIDTH}` }), bars)),
      el("p", { class: "soft" }, "Mean and range, over the sampled tokens in their order. A stretch leads to its first token."));
  }

  return { side };
})();
