// What many trajectories come to: groups with their rewards, histograms, counts.
RT.aggregate = (() => {
  const BINS = 20;
  const MOST_POINTS = 2000;

  const known = (x) => typeof x === "number" && Number.isFinite(x);
  const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);

  /** The sample's standard deviation; null of fewer than two values. */
  function deviation(values) {
    if (values.length < 2) return null;
    const middle = mean(values);
    return Math.sqrt(values.reduce((sum, x) => sum + (x - middle) ** 2, 0) / (values.length - 1));
  }

  function histogram(values) {
    if (!values.length) return { edges: [], counts: [], whole: false };
    const low = values.reduce((a, b) => Math.min(a, b));
    const high = values.reduce((a, b) => Math.max(a, b));
    if (low === high) return { edges: [low, low], counts: [values.length], whole: false };
    const whole = values.every(Number.isInteger);
    const width = whole ? Math.ceil((high - low + 1) / BINS) : (high - low) / BINS;
    const bins = whole ? Math.ceil((high - low + 1) / width) : BINS;
    const counts = new Array(bins).fill(0);
    const edges = Array.from({ length: bins + 1 }, (_, i) => (i === bins && !whole ? high : low + i * width));
    for (const value of values) {
      let at = Math.min(bins - 1, Math.floor((value - low) / width));
      while (at > 0 && value < edges[at]) at -= 1;
      while (at < bins - 1 && value >= edges[at + 1]) at += 1;
      counts[at] += 1;
    }
    return { edges, counts, whole };
  }

  function tally(rows, keysOf) {
    const counts = {};
    for (const row of rows) for (const [key, n] of keysOf(row)) counts[key] = (counts[key] || 0) + n;
    return counts;
  }

  function groupsOf(rows) {
    const groups = new Map();
    for (const row of rows) {
      const name = row.group ?? row.task;
      if (name === null || name === undefined) continue;
      if (!groups.has(name)) groups.set(name, { group: name, by: row.group ?? null ? "group" : "task", n: 0, rewards: [], keys: [] });
      const group = groups.get(name);
      group.n += 1;
      group.rewards.push(row.reward ?? null);
      group.keys.push(row.key);
    }
    return [...groups.values()];
  }

  function thinned(points) {
    if (points.length <= MOST_POINTS) return points;
    return Array.from({ length: MOST_POINTS }, (_, i) => points[Math.floor((i * points.length) / MOST_POINTS)]);
  }

  return (rows) => {
    const column = (name) => rows.map((row) => row[name]).filter(known);
    const rewards = column("reward");
    const costs = column("cost");
    const groups = groupsOf(rows);
    const currencies = new Set(rows.filter((row) => known(row.cost)).map((row) => (row.currency || "USD").toUpperCase()));
    const points = rows.filter((row) => known(row.started) && known(row.reward)).map((row) => [row.started, row.reward]);
    points.sort((a, b) => a[0] - b[0]);
    return {
      n: rows.length,
      groups,
      histograms: Object.fromEntries(["reward", "tokens", "steps", "seconds", "cost"].map((name) => [name, histogram(column(name))])),
      statuses: tally(rows, (row) => [[row.status, 1]]),
      findings: tally(rows, (row) => Object.entries(row.findings)),
      over_time: thinned(points),
      mean_reward: mean(rewards),
      least_reward: rewards.length ? rewards.reduce((a, b) => Math.min(a, b)) : null,
      most_reward: rewards.length ? rewards.reduce((a, b) => Math.max(a, b)) : null,
      std_reward: deviation(rewards),
      cost: costs.length && currencies.size === 1 ? costs.reduce((a, b) => a + b, 0) : null,
      currency: currencies.size === 1 ? [...currencies][0] : null,
    };
  };
})();
