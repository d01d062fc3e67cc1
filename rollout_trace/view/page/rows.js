// The rows that training gets, as strips: which tokens were read, and which were sampled.
RT.rows = (() => {
  const { el, count, number, plural } = RT.dom;
  const { known, section } = RT.shown;
  const MINE = 8;
  const PAGE = 20;

  /** A function of a step's line that gives the mask of each of its tokens: line -> (i -> 0, 1 or null). */
  function masks(outline) {
    const ends = new Map();
    const endsOf = (index) => {
      if (!ends.has(index)) {
        let sum = 0;
        ends.set(index, outline.rows[index].parts.map(([length]) => (sum += length)));
      }
      return ends.get(index);
    };
    return (line) => {
      if (!known(line.row) || !known(line.begin) || !outline.rows[line.row]) return () => null;
      const parts = outline.rows[line.row].parts;
      return (i) => {
        const at = above(endsOf(line.row), line.begin + i);
        return at < parts.length ? parts[at][1] : null;
      };
    };
  }

  /** The index of the first number above `wanted`. */
  function above(numbers, wanted) {
    let low = 0;
    let high = numbers.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (numbers[middle] > wanted) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  /** The stretches of a row, at most `limit`: [length, share that is trained, first step, last step]. */
  function stretches(row, limit) {
    if (row.parts.length <= limit) return row.parts.map(([length, mask, step]) => [length, mask, step, step]);
    const size = row.length / limit;
    const found = [];
    let room = 0;
    for (const [length, mask, step] of row.parts) {
      let rest = length;
      while (rest > 0) {
        if (room < 1) {
          found.push([0, 0, null, null]);
          room += size;
        }
        const last = found[found.length - 1];
        const taken = Math.min(rest, Math.max(1, room));
        last[0] += taken;
        last[1] += taken * mask;
        if (known(step)) [last[2], last[3]] = [last[2] ?? step, step];
        rest -= taken;
        room -= taken;
      }
    }
    return found.map(([length, trained, first, last]) => [length, length ? trained / length : 0, first, last]);
  }

  /** A row as a strip; its pieces that were sampled lead to their steps. */
  function strip(row, index, longest, context, limit) {
    const box = el("div", { class: "row-strip", role: "group", "aria-label": `Row ${index}: ${plural(row.length, "token")}, ${count(row.trained)} trained` });
    box.style.width = `${Math.max(6, (100 * row.length) / longest)}%`;
    for (const [length, share, first, last] of stretches(row, limit)) {
      const sampled = known(first);
      const steps = first === last ? `step ${first}` : `steps ${first} to ${last}`;
      const title = sampled
        ? `${steps}: ${plural(length, "token")}, ${share === 1 ? "trained" : `${Math.round(100 * share)}% trained`}`
        : `${plural(length, "token")} read, not trained`;
      const piece = sampled
        ? el("button", { class: "m1", type: "button", title, "aria-label": title, data: { step: first }, on: { click: () => context.goStep(first) } })
        : el("span", { class: "m0", title });
      piece.style.flexGrow = length;
      if (sampled && share < 1) piece.style.opacity = 0.35 + 0.65 * share;
      box.append(piece);
    }
    return box;
  }

  const longestOf = (outline) => Math.max(1, ...outline.rows.map((row) => row.length));

  /** The part of the side: the first rows. */
  function side(outline, context) {
    const rows = outline.rows.slice(0, MINE);
    const longest = longestOf(outline);
    const more = outline.rows.length - rows.length;
    return section(`Training rows: ${count(outline.rows.length)}`,
      rows.map((row, index) => strip(row, index, longest, context, 60)),
      !rows.length && el("p", { class: "soft" }, "No step has what a training row needs."),
      more > 0 && el("p", { class: "soft" }, `and ${plural(more, "more row")}, under "Rows"`),
      leftOut(outline.summary));
  }

  function leftOut(summary) {
    const reasons = Object.entries(summary.left_out || {});
    if (!reasons.length) return null;
    return el("p", { class: "soft" }, "Left out: ",
      reasons.map(([reason, n]) => `${plural(n, "step")} (${reason.replaceAll("_", " ")})`).join(", "));
  }

  /** The whole pane: every row with its figures, a page at a time. */
  function pane(outline, context) {
    const list = el("div", { class: "rows" });
    const longest = longestOf(outline);
    const more = el("button", { class: "button", type: "button", on: { click: () => add() } });
    let shown = 0;

    function add() {
      const end = Math.min(outline.rows.length, shown + PAGE);
      for (let index = shown; index < end; index += 1) list.append(one(outline.rows[index], index));
      shown = end;
      more.textContent = `show more: ${count(outline.rows.length - shown)} rows are not shown`;
      more.hidden = shown === outline.rows.length;
    }

    function one(row, index) {
      const share = row.length ? Math.round((100 * row.trained) / row.length) : 0;
      const facts = [
        plural(row.length, "token"), `${count(row.trained)} trained (${share}%)`,
        known(row.reward) && `reward ${number(row.reward)}`, row.has_logprobs === false && "no logprobs",
      ].filter(Boolean).join(" · ");
      return el("article", { class: "row card" },
        el("header", {}, el("b", {}, `Row ${index}`), " ", el("span", { class: "soft num" }, facts)),
        strip(row, index, longest, context, 120));
    }

    add();
    return el("div", { class: "pane-inner" },
      el("h2", {}, `Training rows: ${count(outline.rows.length)}`),
      el("p", { class: "soft key" }, el("span", { class: "m1 swatch" }), " sampled, trained (mask 1)",
        el("span", { class: "m0 swatch" }), " read (mask 0). A piece leads to its step."),
      leftOut(outline.summary), list, more,
      !outline.rows.length && el("p", { class: "empty" }, "No step of this trajectory has what a training row needs: token ids of prompt and completion."));
  }

  return { masks, strip, side, pane, stretches };
})();
