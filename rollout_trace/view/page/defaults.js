// The fields that JSON leaves out because they have their default values (rollout_trace/view/model.py). Fields that are
// None are left out as well, and stay undefined here.
RT.defaults = (() => {
  const summary = (s) => ({
    name: "agent", status: "completed", steps: 0, calls: 0, tool_runs: 0, tool_errors: 0, rows: 0, tokens: 0, trained: 0,
    excerpt: "", ...s,
    agents: s.agents || [], models: s.models || [], left_out: s.left_out || {}, findings: s.findings || {}, drift: s.drift || {},
  });

  const line = (l) => ({ status: "ok", thread: 0, excerpt: "", ...l, tools: l.tools || [] });

  const part = (p) => ({ text: "", ...p });

  const message = (m) => ({ ...m, parts: (m.parts || []).map(part) });

  const drift = (d) => ({ meaning: "", ...d });

  const step = (s) => ({
    repeated: 0, has_bytes: false, ...s, offered: s.offered || [],
    line: line(s.line), new: (s.new || []).map(message), answer: s.answer ? message(s.answer) : null,
    tool_runs: s.tool_runs || [], children: s.children || [], findings: s.findings || [], attempts: s.attempts || [],
    drift: s.drift ? drift(s.drift) : null,
  });

  const outline = (o) => ({
    threads: 1, exchanges: 0, exchange_bytes: 0, ...o,
    summary: summary(o.summary), steps: (o.steps || []).map(line), tool_runs: o.tool_runs || [],
    rows: (o.rows || []).map((r) => ({ has_logprobs: true, ...r })), findings: o.findings || [], ratios: o.ratios || [],
    drift: (o.drift || []).map(drift), family: (o.family || []).map(summary),
  });

  return { summary, outline, step };
})();
