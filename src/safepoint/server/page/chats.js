// The list of chats, by their first words, under the day of their last change.

import { button, icon, make } from "./dom.js";
import { dayOf, ending, when } from "./words.js";

const UNDER_WAY = new Set(["queued", "live"]);

export class ChatList {
  constructor(place, open) {
    this.place = place;
    this.open = open;
    this.chats = [];
    this.place.onkeydown = (event) => this.move(event);
  }

  show(chats, current, me) {
    this.chats = chats;
    const focused = document.activeElement?.dataset?.session;
    const items = [];
    let day = null;
    for (const chat of chats) {
      const of = dayOf(chat.updatedAt);
      if (of !== day) items.push(make("h2", of));
      day = of;
      items.push(this.item(chat, current, me));
    }
    if (!chats.length) items.push(make("p.note.pad", "Your chats will be listed here, by their first words."));
    this.place.replaceChildren(...items);
    if (focused) this.place.querySelector(`[data-session="${CSS.escape(focused)}"]`)?.focus();
  }

  item(chat, current, me) {
    const open = button("session", [make("span.ell", chat.title || "New chat"), make("time", when(chat.updatedAt))], () => this.open(chat.sessionId), {
      "data-session": chat.sessionId,
      "aria-current": chat.sessionId === current ? "page" : null,
    });
    const state = stateOf(chat.lastRun, me);
    if (state) open.append(state);
    return open;
  }

  move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], all = [...this.place.querySelectorAll("button")];
    const at = all.indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    all[Math.max(0, Math.min(all.length - 1, at + step))].focus();
  }
}

function stateOf(run, me) {
  if (!run) return null;
  if (UNDER_WAY.has(run.state)) return make("span.state.ok", make("span.dot"), run.state === "queued" ? "Waits for its turn" : "Working");
  if (run.state === "paused") return make("span.state.askc", make("span.dot"), "Waits for you");
  const words = ending(run, me);
  if (!words) return null;
  return run.outcome === "error" ? make("span.state.bad", icon("cut", "small-icon"), words) : make("span.state.soft", icon("pause", "small-icon"), words);
}
