// The other trajectories: those of the episode and forks as trees, those of the group in a list.
RT.tree = (() => {
  const SIBLINGS = 100;
  const FORKS = 500;

  /** A trajectory in a line; the one that is open is no link. `key`: of the open one, to compare with. */
  function line(summary, isOpen, key, shown = summary.name) {
    const { status, steps, reward, index } = summary;
    const name = [
      el("span", { class: `dot ${toneOfStatus(status)}`, title: status }), el("span.clip", shown),
      soft(known(index) && `#${index}`), el("span.num.reward", number(reward)),
    ];
    return el("div", { class: `tree-line${isOpen ? " current" : ""}` },
      isOpen ? el("span.here", { "aria-current": "page" }, name)
        : el("a", { href: RT.app.hash("t", [summary.key]), title: `${plural(steps, "step")} · ${status}` }, name),
      key && !isOpen && el("a.compare", {
        href: RT.app.hash("compare", [key, summary.key]), title: `compare with ${summary.name} #${index ?? "-"}`,
      }, "compare"));
  }

  /** Trajectories with those below them, save those that were `seen`; null where there are none. */
  function branch(some, below, seen, draw) {
    const fresh = (some || []).filter((one) => !seen.has(one.id));
    for (const one of fresh) seen.add(one.id);
    return fresh.length > 0 && el("ul", fresh.map((one) =>
      el("li", draw(one), branch(below.get(one.id), below, seen, draw))));
  }

  /** The trajectories of the episode; null where this one is alone. */
  function family({ family: all, summary }) {
    if (all.length < 2) return null;
    const ids = new Set(all.map((one) => one.id));
    const below = Map.groupBy(all, ({ id, parent }) => (ids.has(parent) && parent !== id ? parent : null));
    const seen = new Set();
    const draw = (one) => line(one, one.id === summary.id);
    // Those whose parents are each other's are below none.
    return section("Episode", branch(below.get(null), below, seen, draw), branch(all, new Map(), seen, draw));
  }

  /** What went on from a recorded run (rt.fork), below that run, to any depth; null where there is no such tree. */
  async function forks({ summary }, key) {
    const { rows, matched } = await RT.data.list({ query: "forked_from is not None", limit: FORKS });
    const forked = new Map(rows.map((row) => [row.id, row]));
    let root = summary.id;
    for (let up = 0; up < FORKS && forked.has(root); up += 1) root = forked.get(root).forked_from;
    const below = Map.groupBy(rows, (row) => row.forked_from);
    if (!below.has(root)) return null;
    const [origin] = (await RT.data.list({ query: `id == ${JSON.stringify(root)}`, limit: 1 })).rows;
    const draw = (one) => line(one, one.key === key, key, `from step ${one.fork_step}`);
    const first = origin ? line(origin, origin.key === key, key)
      : el("div.tree-line.soft", `${root} (not in these files)`);
    return section("Forks", el("ul", el("li", first, branch(below.get(root), below, new Set(), draw))),
      matched > rows.length && el("p.soft", `the first ${FORKS} of ${matched} forks of these files`));
  }

  /** The trajectories of the same group, each to be opened or compared; null where there is none. */
  async function group({ summary }, key) {
    if (!known(summary.group)) return null;
    const { rows, matched } = await RT.data.list({
      query: `group == ${JSON.stringify(summary.group)}`, sort: "index", limit: SIBLINGS,
    });
    return rows.length < 2 ? null : section(`Group ${summary.group}`,
      el("ul", rows.map((row) => el("li", line(row, row.key === key, key)))),
      matched > rows.length && el("p.soft", `the first ${SIBLINGS} of ${matched}`));
  }

  return { family, forks, group };
})();
