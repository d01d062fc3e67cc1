// The groups view: for each group its rewards as a strip of cells, one a trajectory.
RT.groups = (() => {
  const { el, number, count, plural } = RT.dom;
  const MOST_CELLS = 128;
  const PAGE = 50;

  const known = (x) => typeof x === "number";
  const ORDERS = [
    ["", "as recorded"], ["mean", "mean reward"], ["spread", "spread"], ["n", "size"], ["group", "name"],
  ];

  function measured(group) {
    const rewards = group.rewards.filter(known);
    const mean = rewards.length ? rewards.reduce((a, b) => a + b, 0) / rewards.length : null;
    const spread = rewards.length > 1
      ? Math.sqrt(rewards.reduce((sum, r) => sum + (r - mean) ** 2, 0) / (rewards.length - 1)) : null;
    return { ...group, mean, spread, unknown: group.rewards.length - rewards.length };
  }

  function ordered(groups, order) {
    if (!order) return groups;
    const value = (g) => (order === "group" ? String(g.group) : g[order]);
    const sign = order === "group" || order === "mean" ? 1 : -1;
    return [...groups].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return x < y ? -sign : x > y ? sign : 0;
    });
  }

  function scale(groups) {
    const all = groups.flatMap((g) => g.rewards.filter(known));
    const low = all.reduce((a, b) => Math.min(a, b), 0);
    const high = all.reduce((a, b) => Math.max(a, b), low);
    return (reward) => (high > low ? (reward - low) / (high - low) : 0);
  }

  function cell(key, reward, i, level) {
    const what = known(reward) ? `reward ${number(reward)}` : "no reward";
    return el("a", {
      class: known(reward) ? "cell" : "cell unknown", href: RT.app.hash("t", [key]), title: `${i}: ${what}`,
      "aria-label": `trajectory ${i}, ${what}`,
      style: known(reward) ? { "--level": level(reward).toFixed(3) } : {},
    });
  }

  /** Where rewards differ: the worst beside the best. */
  function comparison(group) {
    if (!group.spread) return null;
    const at = (best) => group.rewards.reduce((chosen, r, i) =>
      (known(r) && (chosen < 0 || (best ? r > group.rewards[chosen] : r < group.rewards[chosen])) ? i : chosen), -1);
    return el("a", { href: RT.app.hash("compare", [group.keys[at(true)], group.keys[at(false)]]) }, "compare best and worst");
  }

  function line(group, level, choose) {
    const same = group.spread === 0;
    return el("li", { class: "group", data: { key: RT.dom.text(group.group) } },
      el("div", { class: "what" },
        el("button", { class: "link open clip", title: "Show this group's trajectories", on: { click: () => choose(group) } }, group.group),
        el("span", { class: "soft num", title: plural(group.n, "trajectory", "trajectories") }, count(group.n))),
      el("div", { class: "figures num" },
        el("b", {}, number(group.mean, 3)),
        same ? el("span", { class: "warn" }, "all equal") : el("span", { class: "soft", title: "standard deviation of the rewards" }, group.spread === null ? "" : `deviation ${number(group.spread, 3)}`),
        group.unknown ? el("span", { class: "soft" }, `${count(group.unknown)} without reward`) : null),
      el("div", { class: "cells" },
        group.rewards.slice(0, MOST_CELLS).map((reward, i) => cell(group.keys[i], reward, i, level)),
        group.n > MOST_CELLS ? el("span", { class: "soft" }, `and ${count(group.n - MOST_CELLS)} more`) : null),
      el("div", { class: "compare" }, comparison(group)));
  }

  /** How many pages of groups there are. */
  const pages = (aggregate, options) => Math.ceil(chosen(aggregate.groups.map(measured), options).length / PAGE);

  const chosen = (groups, options) => (options.differing ? groups.filter((g) => g.spread) : groups);

  /** A page of the view. `options` = {order, differing, page}; `change(options)` when one is changed; `choose(group)`. */
  function draw({ aggregate, options, change, choose }) {
    const groups = aggregate.groups.map(measured);
    const shown = ordered(chosen(groups, options), options.order).slice(options.page * PAGE, (options.page + 1) * PAGE);
    const level = scale(groups);
    const equal = groups.filter((g) => g.spread === 0).length;
    return el("section", { class: "groups", "aria-label": "groups" },
      el("div", { class: "tools" },
        el("label", {}, "Order ", el("select", { on: { change: (event) => change({ order: event.target.value }) } },
          ORDERS.map(([value, label]) => el("option", { value, selected: value === options.order }, label)))),
        el("label", {}, el("input", {
          type: "checkbox", checked: options.differing, on: { change: (event) => change({ differing: event.target.checked }) },
        }), " only groups whose rewards differ"),
        el("span", { class: "soft num" },
          plural(groups.length, "group"),
          equal ? `, ${count(equal)} with all rewards equal` : "")),
      shown.length ? el("ul", {}, shown.map((group) => line(group, level, choose)))
        : el("p", { class: "empty" }, groups.length
          ? "No group's rewards differ." : "No trajectory here has a group: set it with rollout(group=...) or record several of one task."));
  }

  return { draw, pages };
})();
