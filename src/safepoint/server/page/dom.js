// Elements and icons. All text goes in as text: nothing that an agent or a tool says can become markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `make("p.note", "text")`, `make("div", {id: "x", onclick}, child, child)`. */
export function make(what, ...rest) {
  const [tag, ...kinds] = what.split(".");
  const element = document.createElement(tag);
  if (kinds.length) element.className = kinds.join(" ");
  for (const each of rest) add(element, each);
  return element;
}

function add(element, given) {
  if (given === null || given === undefined || given === false) return;
  if (given instanceof Node || typeof given === "string") element.append(given);
  else if (Array.isArray(given)) for (const each of given) add(element, each);
  else for (const [name, value] of Object.entries(given)) set(element, name, value);
}

function set(element, name, value) {
  if (name.startsWith("on")) element[name] = value;
  else if (value === true) element.setAttribute(name, "");
  else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
}

/** One of the icons that the HTML file holds. `kinds`: as "spin ok". */
export function icon(name, kinds = "") {
  const drawn = document.createElementNS(SVG, "svg");
  drawn.setAttribute("class", `i ${kinds}`.trim());
  drawn.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  drawn.append(use);
  return drawn;
}

/** An SVG element with attributes, for the timeline. */
export function shape(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  if (text !== undefined) element.textContent = text;
  return element;
}

export function button(kinds, label, onclick, more = {}) {
  return make(`button${kinds ? `.${kinds.replaceAll(" ", ".")}` : ""}`, { type: "button", onclick, ...more }, label);
}

export const key = (name) => make("kbd.no-phone", { "aria-hidden": "true" }, name);

export async function copy(text, from) {
  await navigator.clipboard.writeText(text);
  const before = from.title;
  from.title = "Copied";
  announce("Copied");
  setTimeout(() => (from.title = before), 1500);
}

/** One sentence for a screen reader. The same sentence twice is said twice. */
export function announce(sentence) {
  const live = document.getElementById("announcer");
  live.textContent = live.textContent === sentence ? `${sentence}\u00a0` : sentence;
}

export function download(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = make("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
