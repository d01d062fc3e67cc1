// The groups view: for each group its rewards as a strip of cells, one a trajectory.
RT.groups = (() => {
  const MOST_CELLS = 128;
  const PAGE = 50;
  const ORDERS = [["", "as recorded"], ["mean", "mean reward"], ["spread", "spread"], ["n", "size"], ["group", "name"]];

  function chosen(groups, { order, differing }) {
    const some = differing ? groups.filter((g) => g.spread) : groups;
    return order ? sortedBy(some, (g) => g[order] ?? null, order === "spread" || order === "n") : some;
  }

  function scale(groups) {
    const rewards = groups.flatMap((g) => g.rewards.filter(Number.isFinite));
    const low = least([0, ...rewards]);
    const high = most([low, ...rewards]);
    return (reward) => (high > low ? (reward - low) / (high - low) : 0);
  }

  function cell(key, reward, i, level) {
    const what = known(reward) ? `reward ${number(reward)}` : "no reward";
    return el("a", {
      class: known(reward) ? "cell" : "cell unknown", href: RT.app.hash("t", [key]), title: `${i}: ${what}`,
      "aria-label": `trajectory ${i}, ${what}`,
      style: known(reward) && { "--level": level(reward).toFixed(3) },
    });
  }

  /** Where rewards differ: the worst beside the best. */
  function comparison({ spread, rewards, keys }) {
    if (!spread) return null;
    const given = rewards.filter(Number.isFinite);
    const both = [most(given), least(given)].map((reward) => keys[rewards.indexOf(reward)]);
    return el("a", { href: RT.app.hash("compare", both) }, "compare best and worst");
  }

  function figures({ mean: middle, spread, unknown }) {
    return el("div.figures.num",
      el("b", number(middle, 3)),
      spread === 0 ? el("span.warn", "all equal")
        : el("span.soft", { title: "standard deviation of the rewards" }, spread && `deviation ${number(spread, 3)}`),
      unknown > 0 && soft(`${count(unknown)} without reward`));
  }

  const item = (group, level, choose) => el("li.group", { data: { key: text(group.group) } },
    el("div.what",
      link(group.group, () => choose(group), { class: "link open clip", title: "Show this group's trajectories" }),
      el("span.soft.num", { title: plural(group.n, "trajectory", "trajectories") }, count(group.n))),
    figures(group),
    el("div.cells",
      group.rewards.slice(0, MOST_CELLS).map((reward, i) => cell(group.keys[i], reward, i, level)),
      group.n > MOST_CELLS && soft(`and ${count(group.n - MOST_CELLS)} more`)),
    el("div.compare", comparison(group)));

  const pages = (groups, options) => Math.ceil(chosen(groups, options).length / PAGE);

  function tools(groups, { order, differing }, change) {
    const equal = groups.filter((g) => g.spread === 0).length;
    return el("div.tools",
      el("label", "Order ", el("select", { on: { change: (event) => change({ order: event.target.value }) } },
        ORDERS.map(([value, label]) => el("option", { value, selected: value === order }, label)))),
      el("label", el("input", {
        type: "checkbox", checked: differing, on: { change: (event) => change({ differing: event.target.checked }) },
      }), " only groups whose rewards differ"),
      el("span.soft.num", plural(groups.length, "group"), equal > 0 && `, ${count(equal)} with all rewards equal`));
  }

  /** A page of the view. `options` = {order, differing, page}; `change(options)` changes some; `choose(group)`. */
  function draw({ groups, options, change, choose }) {
    const shown = chosen(groups, options).slice(options.page * PAGE, (options.page + 1) * PAGE);
    const level = scale(groups);
    const why = groups.length ? "No group's rewards differ."
      : "No trajectory here has a group: set it with rollout(group=...) or record several of one task.";
    return el("section.groups", { "aria-label": "groups" }, tools(groups, options, change),
      shown.length ? el("ul", shown.map((group) => item(group, level, choose))) : el("p.empty", why));
  }

  return { draw, pages };
})();
