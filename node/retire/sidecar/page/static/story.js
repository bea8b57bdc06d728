// One transition's story: in words, as lanes to scale, and as the tables of its receipt.
import { count, el, extent, fillAxis, ms, place, scaleOf, segments } from "./draw.js";

const GATES_SHOWN = 12;
const BRANCH = {
  quantum: "the step that ran ended by itself",
  layer_stop: "the step that ran was stopped between two layers",
  finish: "the step that ran was computed to its end, which was cheaper",
};
const REASON = {
  whole_prompt: "everything but the last prompt token is inherited",
  first_difference: "reuse stopped where the contexts differ",
  frontier: "reuse stopped where the old work had written to",
  block_boundary: "reuse stopped at the block boundary",
  window: "a sliding window no longer held more",
  quota: "the tenant's pin quota was exhausted",
  contract: "the contract allows no reuse",
  fingerprint: "model, cache or numerical mode differ",
  generation: "the ownership of the old blocks had ended",
  restore: "the copy in host memory was late, damaged or found no room",
  no_predecessor: "nothing of the scope was in the engine",
};

export function tale(receipt) {
  const said = [];
  const acked = receipt.gates.filter((gate) => gate.outcome === "acked").length;
  const ended = receipt.gates.length - acked;
  const by = [acked ? `${plural(acked, "gate")} acknowledged` : "", ended ? `the lease of ${plural(ended, "gate")} ended` : ""];
  const how = by.filter(Boolean).join(", ") || "no gate could publish it";
  said.push(`The old version was unpublishable ${ms(receipt.stages_ms.unpublishable)} after the call: ${how}.`);
  if (receipt.fence) said.push(`At the fence, ${BRANCH[receipt.fence.branch] ?? receipt.fence.branch}.`);
  if (Number.isFinite(receipt.residual_ms)) said.push(`Old work ran on the device for ${ms(receipt.residual_ms)} after the commit.`);
  if (receipt.successor_request_id) {
    const shared = Math.max(receipt.inheritable_tokens, receipt.certified_tokens);
    said.push(`The successor inherits ${count(receipt.certified_tokens)} of ${count(shared)} shared tokens; ${REASON[receipt.stop_reason] ?? receipt.stop_reason ?? "no reason was given"}.`);
  } else if (receipt.stop_reason === null) {
    said.push("No successor has come yet.");
  }
  if (receipt.pin?.blocks) said.push(`${plural(receipt.pin.blocks, "block")} stayed pinned in ${receipt.pin.tier.toUpperCase()} for ${count(receipt.pin.expires_s)} s.`);
  if (receipt.error) said.push("The engine refused the successor; the old version stays superseded.");
  if (receipt.extra?.ancestor) said.push(`It was moved by a commit on ${receipt.extra.ancestor}.`);
  return said.join(" ");
}

const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

function lanes(receipt) {
  const stages = receipt.stages_ms;
  const commit = stages.commit ?? 0;
  const residual = Number.isFinite(receipt.residual_ms) ? commit + receipt.residual_ms : 0;
  const gates = [...receipt.gates].sort((a, b) => b.ms - a.ms);
  const scale = scaleOf(Math.max(extent(stages), residual, ...gates.map((gate) => gate.ms)));
  const box = el("div", { className: "lanes" });
  const axis = el("span", { className: "bar axis" });
  fillAxis(axis, scale);
  box.append(el("span"), axis, el("span"));
  const add = (name, text, ...marks) => {
    const bar = el("span", { className: "bar" }, ...marks);
    bar.style.setProperty("--step", `${(100 * scale.step) / scale.max}%`);
    if (Number.isFinite(stages.unpublishable)) bar.append(place(el("span", { className: "point" }), stages.unpublishable, null, scale.max));
    box.append(el("span", { className: "name", title: name }, name), bar, el("span", { className: "ms" }, text));
  };
  for (const { name, label, from, to } of segments(stages)) {
    add(label, ms(to), place(el("i", { className: name }), from, to, scale.max));
    if (name !== "unpublishable") continue;
    for (const gate of gates.slice(0, GATES_SHOWN)) {
      const ended = gate.outcome === "acked" ? "unpublishable" : "ended";
      add(`gate ${gate.gate}`, ms(gate.ms), place(el("i", { className: `dot ${ended}`, title: gate.outcome }), gate.ms, null, scale.max));
    }
  }
  if (residual) add("Old work on the device", ms(receipt.residual_ms), place(el("i", { className: "residual" }), commit, residual, scale.max));
  if (gates.length <= GATES_SHOWN) return [box];
  return [box, el("p", { className: "empty" }, `and ${plural(gates.length - GATES_SHOWN, "gate")} that were quicker`)];
}

function table(title, heads, rows) {
  if (!rows.length) return [];
  const cell = (tag, text, index) => el(tag, index ? { className: "number" } : {}, String(text ?? "–"));
  return [
    el("h3", {}, title),
    el("div", { className: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, ...heads.map((head, index) => cell("th", head, index)))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((text, index) => cell("td", text, index))))))),
  ];
}

function trace(id, template) {
  if (!id) return "no trace";
  if (!template) return el("span", { className: "mono" }, `trace ${id}`);
  return el("a", { href: template.replace("{trace_id}", encodeURIComponent(id)), rel: "noreferrer", target: "_blank" }, `trace ${id}`);
}

export function tell(dialog, transition, traceTemplate) {
  const { receipt } = transition;
  const at = new Date(transition.at_unix_s * 1000).toISOString().replace("T", " ").replace("Z", " UTC");
  const close = el("button", { type: "button", onclick: () => dialog.close(), autofocus: true }, "Close");
  const title = el("h2", {}, `${transition.scope}  ${transition.from_version} → ${transition.to_version}`);
  title.id = "story-title";
  const about = el("p", { className: "empty" }, `${transition.tenant} · ${transition.kind} · ${at}`);
  if (receipt) about.append(" · ", trace(receipt.trace_id, traceTemplate));
  const parts = [el("div", { className: "top" }, el("div", {}, title, about), close)];
  if (!receipt) {
    parts.push(el("p", { className: "tale" }, "This node holds no receipt of it: another node made the call, or nothing had to be fenced."));
    dialog.replaceChildren(...parts);
    return;
  }
  parts.push(el("p", { className: "tale" }, tale(receipt)), ...lanes(receipt));
  parts.push(...table("Retired requests", ["Request", "State", "Prompt tokens", "Frontier", "Last published"],
    receipt.requests.map((r) => [r.request_id, r.state, r.prompt_tokens, r.frontier_tokens, r.last_published_index])));
  parts.push(...table("Participants", ["Node", "Pipeline rank", "Tensor rank", "KV group", "Frontier", "Writers"],
    receipt.participants.map((p) => [p.node, p.pp_rank, p.tp_rank, p.kv_group, p.frontier_tokens, p.closed ? "closed" : "open"])));
  parts.push(el("details", {}, el("summary", {}, "The whole receipt"), el("pre", { tabIndex: 0 }, JSON.stringify(receipt, null, 2))));
  dialog.replaceChildren(...parts);
}
