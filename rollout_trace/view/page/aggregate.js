// What many trajectories come to: groups with their rewards, histograms, counts.
RT.aggregate = (() => {
  const BINS = 20;
  const MOST_POINTS = 2000;
  const CHARTED = ["reward", "tokens", "steps", "seconds", "cost"];

  function histogram(values) {
    if (!values.length) return { edges: [], counts: [], whole: false };
    const [low, high] = [least(values), most(values)];
    if (low === high) return { edges: [low, low], counts: [values.length], whole: false };
    const whole = values.every(Number.isInteger);
    const width = whole ? Math.ceil((high - low + 1) / BINS) : (high - low) / BINS;
    const bins = whole ? Math.ceil((high - low + 1) / width) : BINS;
    const counts = new Array(bins).fill(0);
    const edges = Array.from({ length: bins + 1 }, (_, i) => (i === bins && !whole ? high : low + i * width));
    for (const value of values) counts[Math.min(bins, upTo(edges, value)) - 1] += 1;
    return { edges, counts, whole };
  }

  function tally(rows, keysOf) {
    const counts = {};
    for (const row of rows) for (const [key, n] of keysOf(row)) counts[key] = (counts[key] || 0) + n;
    return counts;
  }

  function groupsOf(rows) {
    const named = Map.groupBy(rows, (row) => row.group ?? row.task ?? null);
    named.delete(null);
    return [...named].map(([group, some]) => {
      const rewards = some.map((row) => row.reward ?? null);
      const given = rewards.filter(Number.isFinite);
      return {
        group, by: known(some[0].group) ? "group" : "task", n: some.length, keys: some.map((row) => row.key),
        rewards, mean: mean(given), spread: deviation(given), unknown: some.length - given.length,
      };
    });
  }

  function thinned(points) {
    if (points.length <= MOST_POINTS) return points;
    return Array.from({ length: MOST_POINTS }, (_, i) => points[Math.floor((i * points.length) / MOST_POINTS)]);
  }

  return (rows) => {
    const column = (name) => rows.map((row) => row[name]).filter(Number.isFinite);
    const rewards = column("reward");
    const paid = rows.filter((row) => Number.isFinite(row.cost));
    const [currency, ...others] = new Set(paid.map((row) => (row.currency || "USD").toUpperCase()));
    const isOne = known(currency) && !others.length;
    const points = rows.map((row) => [row.started, row.reward]).filter((point) => point.every(Number.isFinite));
    return {
      n: rows.length,
      groups: groupsOf(rows),
      histograms: Object.fromEntries(CHARTED.map((name) => [name, histogram(column(name))])),
      statuses: tally(rows, (row) => [[row.status, 1]]),
      findings: tally(rows, (row) => Object.entries(row.findings)),
      over_time: thinned(points.sort((a, b) => a[0] - b[0])),
      rewards: { low: least(rewards), high: most(rewards), mean: mean(rewards), deviation: deviation(rewards) },
      cost: isOne ? sum(column("cost")) : null,
      currency: isOne ? currency : null,
    };
  };
})();
