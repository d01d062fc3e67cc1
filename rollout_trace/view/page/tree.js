// The other trajectories: those of the episode as a tree, those of the group in a list.
RT.tree = (() => {
  const { el, grouped, number, plural, toneOfStatus } = RT.dom;
  const { known, section } = RT.shown;
  const SIBLINGS = 100;
  const FORKS = 500;

  function line(summary, current, extra) {
    const name = [el("span", { class: `dot ${toneOfStatus(summary.status || "completed")}`, title: summary.status || "completed" }),
      el("span", { class: "clip" }, summary.name || "agent"),
      el("span", { class: "soft" }, known(summary.index) ? `#${summary.index}` : null),
      el("span", { class: "num reward" }, known(summary.reward) ? number(summary.reward) : "-")];
    const known_ = summary.key && !current;
    return el("div", { class: `tree-line${current ? " current" : ""}` },
      known_ ? el("a", { href: RT.app.hash("t", [summary.key]), title: `${plural(summary.steps || 0, "step")} · ${summary.status || "completed"}` }, name)
        : el("span", { class: "here", "aria-current": current ? "page" : null }, name),
      extra);
  }

  /** The trajectories of the episode; null where this one is alone. */
  function family(outline) {
    const all = outline.family || [];
    if (all.length < 2) return null;
    const ids = new Set(all.map((one) => one.id));
    const below = grouped(all, (one) => (known(one.parent) && ids.has(one.parent) && one.parent !== one.id ? one.parent : null));
    const seen = new Set();
    const branch = (parent) => {
      const children = (below.get(parent) || []).filter((one) => !seen.has(one.id));
      if (!children.length) return null;
      for (const one of children) seen.add(one.id);
      return el("ul", {}, children.map((one) => el("li", {}, line(one, one.id === outline.summary.id), branch(one.id))));
    };
    const tree = branch(null);
    const lost = all.filter((one) => !seen.has(one.id));
    return section("Episode", tree, lost.length > 0 && el("ul", {}, lost.map((one) => el("li", {}, line(one, one.id === outline.summary.id)))));
  }

  const comparing = (row, key) => row.key !== key && el("a", {
    class: "compare", href: RT.app.hash("compare", [key, row.key]), title: `compare with ${row.name || "agent"} #${row.index ?? "-"}`,
  }, "compare");

  /** What went on from a recorded run (rt.fork), below that run, to any depth; null where this one is in no such tree. */
  async function forks(outline, key) {
    const { rows, matched } = await RT.data.list({ query: "forked_from is not None", limit: FORKS });
    const forked = new Map(rows.map((row) => [row.id, row]));
    let root = outline.summary.id;
    for (let up = 0; up < FORKS && forked.has(root); up += 1) root = forked.get(root).forked_from;
    const below = grouped(rows, (row) => row.forked_from);
    if (!below.has(root)) return null;
    const origin = (await RT.data.list({ query: `id == ${JSON.stringify(root)}`, limit: 1 })).rows[0];
    const seen = new Set();
    const branch = (id) => {
      const children = (below.get(id) || []).filter((one) => !seen.has(one.id));
      for (const one of children) seen.add(one.id);
      return children.length > 0 && el("ul", {}, children.map((one) => el("li", {},
        line({ ...one, name: `from step ${one.fork_step}` }, one.key === key, comparing(one, key)), branch(one.id))));
    };
    const first = origin ? line(origin, origin.key === key, comparing(origin, key)) : el("div", { class: "tree-line soft" }, `${root} (not in these files)`);
    return section("Forks", el("ul", {}, el("li", {}, first, branch(root))),
      matched > rows.length && el("p", { class: "soft" }, `the first ${FORKS} of ${matched} forks of these files`));
  }

  /** The trajectories of the same group, each to be opened or compared; null where there is none. */
  async function group(outline, key) {
    const name = outline.summary.group;
    if (!known(name)) return null;
    const found = await RT.data.list({ query: `group == ${JSON.stringify(name)}`, sort: "index", limit: SIBLINGS });
    const { rows } = found;
    if (rows.length < 2) return null;
    return section(`Group ${name}`, el("ul", {}, rows.map((row) => el("li", {}, line(row, row.key === key, comparing(row, key))))),
      found.matched > found.rows.length && el("p", { class: "soft" }, `the first ${SIBLINGS} of ${found.matched}`));
  }

  return { family, forks, group };
})();
