// Questions of a run that waits for a person: a call that asks to be allowed, or a tool that asks for words.

import { announce, button, icon, key, make } from "./dom.js";
import { plain, summary, timeOf } from "./words.js";

const YES = /^(y|yes|ok|okay|sure|allow)$/i, NO = /^(n|no|nope|deny)$/i;

export class Questions {
  /** `does.answer(parts)`: the run goes on with all answers. */
  constructor(does) {
    this.does = does;
    this.open = [];
    this.answers = new Map();
  }

  /** The box of the questions that one pause asks; it takes the place of an earlier one. */
  show(asked, cards) {
    this.close();
    this.open = asked.map((question) => new Question(question, cards, (value) => this.take(question, value)));
    const box = make("div.questions", this.open.map((each) => each.element));
    // Without an answer yet, a person who types is not interrupted: the status line says it, and Alt+Q goes there.
    queueMicrotask(() => this.arrive());
    return box;
  }

  arrive() {
    const message = document.getElementById("message");
    if (!this.open.length || !this.open[0].element.isConnected) return;
    announce(`It waits for you: ${this.open[0].sentence}`);
    if (document.activeElement !== message || !message.value) this.focus();
  }

  focus() {
    this.open.find((each) => !each.answered)?.focus();
  }

  get waiting() {
    return this.open.some((each) => !each.answered);
  }

  take(question, value) {
    this.answers.set(question.id, { functionResponse: { id: question.id, name: question.tool, response: { result: value } } });
    if (this.waiting) this.focus();
    else {
      const parts = [...this.answers.values()];
      this.close();
      this.does.answer(parts);
    }
  }

  /** What is typed answers a single question, if it can only be meant as an answer; false if it can't. */
  takeWords(text) {
    const open = this.open.filter((each) => !each.answered);
    if (open.length !== 1) return false;
    const [question] = open;
    if (question.isApproval) {
      if (!YES.test(text) && !NO.test(text)) return false;
      question.answer(YES.test(text));
      return true;
    }
    return false;
  }

  answerWith(text) {
    const question = this.open.find((each) => !each.answered);
    question?.answer(question.isApproval ? text || false : text);
  }

  /** A question that was answered, or that a later message has overtaken, can't be answered any more. */
  close() {
    for (const each of this.open) each.retire();
    this.open = [];
    this.answers = new Map();
  }
}

class Question {
  constructor(question, cards, answered) {
    this.question = question;
    this.isApproval = question.kind !== "interrupt";
    this.answered = false;
    this.onAnswer = answered;
    const payload = question.payload, inner = payload && typeof payload === "object" ? (payload.question ?? payload.text) : payload;
    this.sentence = inner === undefined || inner === null ? `${question.tool} asks` : plain(inner);
    const card = [...cards.values()].find((each) => question.id.startsWith(each.call.id));
    const command = this.isApproval && card ? summary(card.call.args) : "";
    const title = make("h3", this.sentence);
    this.buttons = this.isApproval ? this.approval() : this.words();
    this.element = make(
      "section.question",
      { role: "group", "aria-label": `${question.tool} asks`, tabindex: -1 },
      make("header", icon("ask"), title, make("span.grow"), make("span.small", question.tool)),
      make("div.body", command && make("p.cmd", command), this.buttons),
    );
  }

  approval() {
    this.allow = button("main", ["Allow", key("Y")], () => this.answer(true));
    this.why = make("input", { "aria-label": "Why not?", placeholder: "Why not? (may be empty)", hidden: true });
    const no = button("", ["No…", key("X")], () => this.refuse());
    this.no = no;
    const form = make("form.answers", this.allow, no, this.why, make("span.grow"), make("span.note.no-phone", "Nothing runs while it waits."));
    form.onsubmit = (event) => {
      event.preventDefault();
      this.answer(this.why.value.trim() || false);
    };
    return form;
  }

  /** The first press asks why; the second one, or Enter, refuses. */
  refuse() {
    if (!this.why.hidden) return this.answer(this.why.value.trim() || false);
    this.why.hidden = false;
    this.no.firstChild.textContent = "Say no";
    this.why.focus();
  }

  words() {
    this.input = make("input", { "aria-label": `Answer to ${this.question.tool}`, required: true });
    const form = make("form.answers", this.input, make("button.main", { type: "submit" }, "Answer"));
    form.onsubmit = (event) => {
      event.preventDefault();
      this.answer(this.input.value);
    };
    return form;
  }

  focus() {
    (this.allow ?? this.input).focus();
  }

  answer(value) {
    if (this.answered) return;
    this.answered = true;
    this.trace(value);
    this.onAnswer(value);
  }

  /** Every answer leaves one line: what it was, and when. */
  trace(value) {
    const [sign, words] =
      value === true ? ["check", "You allowed "] : this.isApproval ? ["never", "You said no to "] : ["check", "You answered "];
    const said = this.isApproval ? (typeof value === "string" ? `: ${value}` : "") : `: ${value}`;
    const line = make("p.trace", icon(sign), words, make("code", this.question.tool), said, make("span.faint.num", timeOf(Date.now() / 1000)));
    this.element.replaceWith(line);
  }

  retire() {
    if (!this.answered && this.element.isConnected) {
      this.buttons.remove();
      this.element.classList.add("over");
    }
  }
}
