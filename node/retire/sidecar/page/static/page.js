// Asks the node every two seconds and shows what it says. Reads only; keeps nothing but the token.
import { STAGES, ago, count, el, extent, fillAxis, fillBar, ms, scaleOf } from "./draw.js";
import { tell } from "./story.js";

const POLL_MS = 2000;
const ROWS = 60;
const TENANTS = 8; // those that pin most
const byId = (id) => document.getElementById(id);
const state = {
  transitions: new Map(), // sequence -> transition, newest first
  rows: new Map(), // sequence -> its <li>
  newest: 0, limit: 100, match: "", own: false, traceUrl: null, asked: 0, answered: 0, nowS: 0, scopes: "",
};

async function ask() {
  const query = new URLSearchParams({ after: state.newest, limit: state.limit, match: state.match });
  const token = sessionStorage.getItem("retire-token");
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const answer = await fetch(`/live.json?${query}`, { headers, cache: "no-store", signal: AbortSignal.timeout(8000) });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(body.error?.message ?? answer.statusText), { status: answer.status });
  return body;
}

async function refresh() {
  const turn = ++state.asked; // of two questions under way, only the newer one's answer counts
  try {
    const facts = await ask();
    if (turn !== state.asked) return;
    show(facts);
    fail(null);
  } catch (error) {
    if (turn === state.asked) fail(error);
  }
  document.body.dataset.answers = String(++state.answered);
}

function fail(error) {
  const notice = byId("notice");
  const asks = error?.status === 401;
  byId("sign-in").hidden = !asks;
  if (asks) {
    document.querySelector("main").hidden = true;
    if (sessionStorage.getItem("retire-token") === null) error = null;
  }
  notice.hidden = !error;
  document.querySelector("main").classList.toggle("stale", Boolean(error));
  if (error) notice.textContent = error.status ? error.message : `The node does not answer; what is shown is old. (${error.message})`;
  if (error && !asks) pill("bad", "No answer");
}

function pill(kind, text) {
  byId("state").className = `pill ${kind}`;
  byId("state").textContent = text;
}

function show(facts) {
  document.querySelector("main").hidden = false;
  state.traceUrl = facts.trace_url;
  state.nowS = facts.now_unix_s;
  showNode(facts.node, facts);
  showPins(facts.pins);
  showEngines(facts.node.engines);
  showScopes(facts.scopes);
  if (take(facts.transitions)) drawRows();
  for (const [sequence, row] of state.rows) {
    row.querySelector(".when").textContent = ago(facts.now_unix_s - state.transitions.get(sequence).at_unix_s);
  }
}

function showNode(node, facts) {
  byId("node").textContent = facts.tenant ? `${facts.tenant} on ${node.node}` : node.node;
  document.title = `${node.node} · Retire`;
  if (node.registry_lost) pill("bad", `Registry lost: ${node.registry_lost}`);
  else if (node.ready) pill("good", "Ready");
  else pill("wait", node.not_ready_reason);
  const figures = [
    ["Scopes", count(facts.scopes.total) + (facts.scopes.partial ? "+" : "")],
    ["Gates", count(node.gates)],
    ["Publish lease", node.lease === "held" ? `${(node.lease_left_ms / 1000).toFixed(1)} s` : node.lease],
    ["Term", count(node.term)],
  ];
  byId("figures").replaceChildren(...figures.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function showPins(pins) {
  const most = [...pins].sort((a, b) => b.pinned_blocks - a.pinned_blocks).slice(0, TENANTS);
  byId("no-pins").hidden = pins.length > 0;
  byId("pins").replaceChildren(...most.map((pin) => {
    const limit = pin.granted_blocks;
    const text = `${count(pin.pinned_blocks)}${limit === null ? "" : ` of ${count(limit)}`} block${pin.pinned_blocks === 1 && limit === null ? "" : "s"}`;
    const bar = el("span", { className: "meter" }, el("i"));
    const share = limit ? Math.min(1, pin.pinned_blocks / limit) : 0;
    bar.firstChild.style.width = `${100 * share}%`;
    bar.classList.toggle("full", share > 0.9);
    bar.hidden = limit === null;
    return el("li", {}, el("b", {}, pin.tenant), el("span", {}, text), bar);
  }));
  if (pins.length > TENANTS) byId("pins").append(el("li", { className: "empty" }, `and ${count(pins.length - TENANTS)} with no more than these`));
}

function showEngines(engines) {
  byId("no-engines").hidden = engines.length > 0;
  byId("engines").replaceChildren(...engines.map((engine) => el("li", {}, el("b", {}, engine.model),
    el("small", {}, `${count(engine.num_blocks)} blocks of ${engine.block_size} tokens, ${engine.gates} API process${engine.gates === 1 ? "" : "es"}`))));
}

function phase(scope) {
  const word = scope.cancelled ? "cancelled" : scope.paused ? "paused" : scope.phase;
  const kind = { current: "good", cancelled: "", paused: "wait" }[word] ?? "wait";
  return el("span", { className: `pill ${kind}` }, word);
}

function showScopes(scopes) {
  byId("scopes-count").textContent = scopes.total > scopes.shown.length ? `${count(scopes.shown.length)} of ${count(scopes.total)}, last used first` : "";
  byId("no-scopes").hidden = scopes.total > 0;
  document.querySelector("#scopes table").hidden = scopes.total === 0;
  const all = byId("all");
  all.hidden = scopes.total <= scopes.shown.length || state.limit >= 1000;
  all.textContent = `Show ${scopes.total > 1000 ? "1,000" : `all ${count(scopes.total)}`}`;
  const body = byId("scope-rows");
  const known = JSON.stringify(scopes.shown, (name, value) => (name === "used_s_ago" ? 0 : value));
  if (known === state.scopes) {
    scopes.shown.forEach((scope, index) => { body.rows[index].lastChild.textContent = ago(scope.used_s_ago); });
    return;
  }
  state.scopes = known;
  body.replaceChildren(...scopes.shown.map((scope) => el("tr", {},
    el("td", {}, scope.scope), el("td", {}, scope.tenant), el("td", {}, scope.version), el("td", {}, phase(scope)),
    el("td", { className: "more" }, scope.parent ?? "–"), el("td", { className: "more" }, scope.on_new_input ?? "–"),
    el("td", { className: "number more" }, count(scope.receipts)), el("td", { className: "number" }, ago(scope.used_s_ago)))));
}

// New records, oldest first. A later receipt of a transition that is shown completes it in place.
function take(records) {
  for (const record of [...records].reverse()) {
    state.newest = Math.max(state.newest, record.sequence);
    record.receipt = record.receipt_json ? JSON.parse(record.receipt_json) : null;
    const same = [...state.transitions.values()].find((one) => one.tenant === record.tenant && one.scope === record.scope
      && one.to_version === record.to_version && record.receipt && one.receipt);
    if (same) {
      same.receipt = record.receipt;
      state.rows.get(same.sequence)?.remove();
      state.rows.delete(same.sequence);
    } else state.transitions.set(record.sequence, record);
  }
  const kept = [...state.transitions.values()].sort((a, b) => b.sequence - a.sequence).slice(0, ROWS);
  state.transitions = new Map(kept.map((one) => [one.sequence, one]));
  return records.length > 0;
}

function drawRows() {
  const list = byId("rows");
  for (const [sequence, row] of state.rows) {
    if (!state.transitions.has(sequence)) { row.remove(); state.rows.delete(sequence); }
  }
  let before = null; // rows that stay are never moved: the focused one keeps its focus
  for (const transition of [...state.transitions.values()].reverse()) {
    let row = state.rows.get(transition.sequence);
    if (!row) {
      row = rowOf(transition);
      state.rows.set(transition.sequence, row);
      list.insertBefore(row, before ?? null);
    }
    before = row;
  }
  byId("no-rows").hidden = state.transitions.size > 0;
  document.querySelector(".columns").hidden = state.transitions.size === 0;
  drawBars();
}

function rowOf(transition) {
  const { receipt } = transition;
  const label = `${transition.scope} of ${transition.tenant}: ${transition.kind}, ${transition.from_version} to ${transition.to_version}`;
  const told = receipt ? `, unpublishable after ${ms(receipt.stages_ms.unpublishable)}` : "";
  const kept = receipt?.successor_request_id ? count(receipt.certified_tokens) : "–";
  const move = transition.from_version === transition.to_version ? transition.to_version : `${transition.from_version} → ${transition.to_version}`;
  return el("li", {}, el("a", { className: "row", href: `#t=${transition.sequence}`, "aria-label": label + told },
    el("span", { className: "who" }, el("b", {}, transition.scope), el("small", {}, transition.tenant)),
    el("span", { className: "move" }, move),
    el("span", { className: "bar" }),
    el("span", { className: "ms" }, receipt ? ms(receipt.stages_ms.unpublishable) : ""),
    el("span", { className: "kept" }, kept),
    el("span", { className: "when" })));
}

function drawBars() {
  const receipts = [...state.transitions.values()].filter((one) => one.receipt);
  const shared = scaleOf(Math.max(0, ...receipts.map((one) => extent(one.receipt.stages_ms))));
  for (const [sequence, row] of state.rows) {
    const { receipt, kind } = state.transitions.get(sequence);
    const bar = row.querySelector(".bar");
    if (!receipt) bar.replaceChildren(el("em", {}, `${kind}, no receipt on this node`));
    else fillBar(bar, receipt.stages_ms, state.own ? scaleOf(extent(receipt.stages_ms)) : shared);
  }
  if (state.own) byId("axis").replaceChildren(el("span", {}, "Stages, each bar to its own scale"));
  else fillAxis(byId("axis"), shared);
}

function openStory() {
  const dialog = byId("story");
  const found = /^#t=(\d+)$/.exec(location.hash);
  const transition = found && state.transitions.get(Number(found[1]));
  if (!transition) {
    if (dialog.open) dialog.close();
    return;
  }
  state.story = found[0];
  tell(dialog, transition, state.traceUrl);
  if (!dialog.open) dialog.showModal();
}

function listen() {
  byId("legend").replaceChildren(...STAGES.map(([name, label]) => el("li", {}, el("span", { className: `swatch ${name}` }), label)));
  byId("scale").addEventListener("change", (event) => { state.own = event.target.value === "own"; drawBars(); });
  byId("match").addEventListener("input", (event) => { state.match = event.target.value; refresh(); });
  byId("all").addEventListener("click", () => { state.limit = 1000; refresh(); });
  byId("sign-in").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("retire-token", byId("token").value.trim());
    refresh();
  });
  window.addEventListener("hashchange", openStory);
  byId("story").addEventListener("close", () => { // late: another row may have been chosen by then
    if (!byId("story").open && location.hash === state.story) history.replaceState(null, "", location.pathname);
  });
  byId("rows").addEventListener("click", (event) => { // and the same row is no new address until then
    const { hash } = event.target.closest("a") ?? location;
    setTimeout(() => { if (location.hash === hash) openStory(); else location.hash = hash; });
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
}

listen();
await refresh();
openStory();
setInterval(() => { if (!document.hidden) refresh(); }, POLL_MS);
