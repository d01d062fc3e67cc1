// The rows that training gets, as strips: which tokens were read, and which were sampled.
RT.rows = (() => {
  const MINE = 8;
  const PAGE = 20;

  /** A function of a step's line that gives the mask of each of its tokens: line -> (i -> 0, 1 or null). */
  function masks({ rows }) {
    const ends = new Map();
    const endsOf = (row) => {
      let end = 0;
      if (!ends.has(row)) ends.set(row, row.parts.map(([length]) => (end += length)));
      return ends.get(row);
    };
    return ({ row: index, begin }) => {
      const row = rows[index];
      if (!row || !known(begin)) return () => null;
      return (i) => (row.parts[upTo(endsOf(row), begin + i)] || [null, null])[1];
    };
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
        const last = found.at(-1);
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

  /** A piece of a strip; one that was sampled leads to its first step. */
  function piece([length, share, first, last], context) {
    if (!known(first)) {
      return el("span.m0", { title: `${plural(length, "token")} read, not trained`, style: { "flex-grow": length } });
    }
    const steps = first === last ? `step ${first}` : `steps ${first} to ${last}`;
    const trained = share === 1 ? "trained" : `${Math.round(100 * share)}% trained`;
    const title = `${steps}: ${plural(length, "token")}, ${trained}`;
    const style = { "flex-grow": length, ...(share < 1 && { opacity: 0.35 + 0.65 * share }) };
    const on = { click: () => context.goStep(first) };
    return el("button.m1", { type: "button", title, "aria-label": title, data: { step: first }, on, style });
  }

  function strip(row, index, context, limit) {
    const longest = most([1, ...context.outline.rows.map((one) => one.length)]);
    const label = `Row ${index}: ${plural(row.length, "token")}, ${count(row.trained)} trained`;
    const width = `${Math.max(6, (100 * row.length) / longest)}%`;
    return el("div.row-strip", { role: "group", "aria-label": label, style: { width } },
      stretches(row, limit).map((one) => piece(one, context)));
  }

  function side(context) {
    const { rows, summary } = context.outline;
    return section(`Training rows: ${count(rows.length)}`,
      rows.slice(0, MINE).map((row, index) => strip(row, index, context, 60)),
      !rows.length && el("p.soft", "No step has what a training row needs."),
      rows.length > MINE && el("p.soft", `and ${plural(rows.length - MINE, "more row")}, under "Rows"`),
      leftOut(summary));
  }

  function leftOut(summary) {
    const reasons = Object.entries(summary.left_out);
    return reasons.length > 0 && el("p.soft", "Left out: ",
      reasons.map(([reason, n]) => `${plural(n, "step")} (${reason.replaceAll("_", " ")})`).join(", "));
  }

  /** The whole pane: every row with its figures, a page at a time. */
  function pane(context) {
    const { rows, summary } = context.outline;
    const list = el("div.rows");
    const more = el("button.button", { type: "button", on: { click: add } });
    let shown = 0;

    function add() {
      const end = Math.min(rows.length, shown + PAGE);
      for (let index = shown; index < end; index += 1) list.append(one(rows[index], index));
      shown = end;
      more.textContent = `show more: ${count(rows.length - shown)} rows are not shown`;
      more.hidden = shown === rows.length;
    }

    function one(row, index) {
      const share = row.length ? Math.round((100 * row.trained) / row.length) : 0;
      const facts = dotted([
        plural(row.length, "token"), `${count(row.trained)} trained (${share}%)`,
        known(row.reward) && `reward ${number(row.reward)}`, !row.has_logprobs && "no logprobs",
      ]);
      return el("article.row.card",
        el("header", el("b", `Row ${index}`), " ", el("span.soft.num", facts)),
        strip(row, index, context, 120));
    }

    add();
    return el("div.pane-inner",
      el("h2", `Training rows: ${count(rows.length)}`),
      el("p.soft.key", el("span.m1.swatch"), " sampled, trained (mask 1)",
        el("span.m0.swatch"), " read (mask 0). A piece leads to its step."),
      leftOut(summary), list, more, !rows.length && el("p.empty",
        "No step of this trajectory has what a training row needs: token ids of prompt and completion."));
  }

  return { masks, side, pane };
})();
