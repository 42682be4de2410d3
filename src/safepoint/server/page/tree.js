// The panel "This run": every agent and call of the live run, each with a stop of its own.

import { button, icon, make } from "./dom.js";
import { callState, clock, ending, inDoubt, seconds, summary, tokens } from "./words.js";

const KINDS = { thread: "a thread: may not react", process: "a process", child: "an agent" };

export class RunPanel {
  /** `does`: `stopCall(path, name)`. */
  constructor(panel, does) {
    this.scroll = panel.querySelector(".scroll");
    this.meter = panel.querySelector(".meter");
    this.strip = document.getElementById("strip");
    this.does = does;
    this.clear();
  }

  clear() {
    this.scroll.replaceChildren(make("p.note.empty-panel", "While it works, every agent and tool call is listed here, each with a stop of its own."));
    this.meter.replaceChildren();
    this.strip.hidden = true;
  }

  update(tree, me) {
    const focused = document.activeElement?.dataset?.path;
    const over = !["queued", "live"].includes(tree.run.state), top = nested(tree.nodes);
    this.scroll.classList.toggle("over", over);
    this.scroll.replaceChildren(make("div.tree", top.map((each) => this.branch(each, tree, me, over, true))));
    if (focused) this.scroll.querySelector(`[data-path="${CSS.escape(focused)}"]`)?.focus();
    const usage = tree.usage ?? tree.run.usage;
    this.meter.replaceChildren();
    if (usage) {
      this.meter.append(make("div", make("dt", "Tokens"), make("dd", `${tokens(usage.inputTokens ?? 0)} in, ${tokens(usage.outputTokens ?? 0)} out`)));
      if (usage.costUsd) this.meter.append(make("div", make("dt", "Cost"), make("dd", `$${usage.costUsd.toFixed(2)}`)));
    }
    const running = tree.nodes.filter((node) => node.kind === "tool" && node.state === "running").length;
    const queued = tree.nodes.filter((node) => node.state === "queued").length;
    this.strip.hidden = over || !(running + queued);
    this.strip.querySelector(".count").textContent = [running && `${running} running`, queued && `${queued} queued`].filter(Boolean).join(", ");
  }

  branch({ node, inside }, tree, me, over, isRoot) {
    const shown = node.kind === "agent" ? this.agent(node, tree, me, over, isRoot) : this.callNode(node, over && tree.run.state !== "paused", tree);
    if (!inside.length && !node.model) return isRoot ? shown : make("li", shown);
    const models = node.model?.length ? [modelLine(node, tree)] : [];
    const below = make("ul", models, inside.map((each) => this.branch(each, tree, me, over, false)));
    return make(isRoot ? "div" : "li", shown, below);
  }

  agent(node, tree, me, over, isRoot) {
    const running = node.state === "running";
    const stopping = running && isRoot && (tree.asked ?? []).length > 0;
    const sign = running ? icon("spin", "ok spin") : node.state === "cancelled" ? icon("stop", "fill") : node.state === "interrupted" ? icon("ask", "askc") : icon("check", "faint");
    const lasted = node.startedAt ? (node.endedAt ?? (over ? node.startedAt : tree.now)) - node.startedAt : 0;
    const sub = running ? (stopping ? "stopping" : node.step ? `step ${node.step}` : "") : isRoot ? ending(tree.run, me).toLowerCase() : "";
    const stop = running && this.stop(node, isRoot ? `Stop ${node.name} and all below` : `Stop ${node.name}`);
    return make("div.node", sign, make("b", node.name), make("span.num", running ? clock(lasted) : seconds(lasted)), stop, sub && make("span.sub", sub));
  }

  callNode(node, over, tree) {
    const [sign, tone, word] = callState(node, over), live = ["running", "queued"].includes(node.state);
    const lasted = node.startedAt && (node.endedAt ?? (live ? tree.now : 0)) ? (node.endedAt ?? tree.now) - node.startedAt : null;
    const right = node.state === "running" && !node.rungs?.length ? clock(lasted ?? 0) : word ? word.toLowerCase() : lasted === null ? "" : seconds(lasted);
    const warning = node.effect === "irreversible" && live ? "cannot be undone" : "";
    const sub = warning || (live && KINDS[node.work]) || summary(node.arguments);
    const name = live || inDoubt(node) ? make("b", node.name) : make("span.soft.ell", node.name);
    return make("div.node", icon(sign, tone), name, make(`span.num${inDoubt(node) ? ".warn" : tone === "askc" ? ".askc" : ""}`, right), live && this.stop(node, `Stop ${node.name}`), sub && make(`span.sub${warning ? ".warn" : sub === summary(node.arguments) ? ".mono.ell" : ""}`, sub));
  }

  stop(node, label) {
    const shown = button("quiet tiny icon", "", () => this.does.stopCall(node.path, node.name), { "aria-label": label, "data-path": node.path });
    shown.append(icon("stop", "fill"));
    return shown;
  }
}

function modelLine(node, tree) {
  const lasted = node.model.reduce((sum, [from, to]) => sum + ((to ?? tree.now) - from), 0), live = node.model.at(-1)[1] === null && node.state === "running";
  const words = node.model.length === 1 ? "model, 1 call" : `model, ${node.model.length} calls`;
  return make("li", make("div.node", live ? icon("spin", "ok spin") : icon("check", "faint"), make("span.soft.ell", live ? `${words}, thinking` : words), make("span.num", seconds(lasted))));
}

/** The nodes as a tree, by their paths. */
export function nested(nodes) {
  const found = new Map(nodes.map((node) => [node.path, { node, inside: [] }])), top = [];
  for (const each of found.values()) {
    const parts = each.node.path.split("/");
    let above = null;
    while (parts.length > 1 && !above) {
      parts.pop();
      above = found.get(parts.join("/"));
    }
    (above ? above.inside : top).push(each);
  }
  return top;
}
