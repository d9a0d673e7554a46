// An answer as a card. All figures are text from the server; bars are as long as the server says.

import { button, make } from "./dom";
import { type Answer, type Change, type Picture, type Tick, address } from "./serve_api";

const SVG = "http://www.w3.org/2000/svg";
const BADGES: Record<Answer["kind"], string> = {
  bound: "at once, from bounds: it needs at least this",
  cached: "predicted before",
  exact: "exact prediction",
  none: "",
  error: "",
};

export function shape(tag: string, attributes: Record<string, string | number>): SVGElement {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}

/** Horizontal lines with their sizes, left of a drawing. */
export function drawTicks(svg: SVGElement, ticks: Tick[], width: number): void {
  for (const tick of ticks) {
    svg.append(shape("line", { x1: 0, x2: width, y1: tick.y, y2: tick.y, class: "tick" }));
  }
}

export function tickLabels(ticks: Tick[], height: number): HTMLElement {
  const labels = ticks.map((tick) => {
    const label = make("span", {}, tick.text);
    label.style.top = `${(100 * tick.y) / height}%`;
    return label;
  });
  return make("div", { class: "ticks", "aria-hidden": "true" }, ...labels);
}

function bar(share: number, tone: string): HTMLElement {
  const inner = make("i", { class: tone });
  inner.style.width = `${100 * share}%`;
  return make("div", { class: "meter" }, inner);
}

function copying(label: string, text: string): HTMLButtonElement {
  const element = button(label, text, async () => {
    try {
      await navigator.clipboard.writeText(text);
      element.textContent = "copied";
    } catch {
      const field = make("textarea", {}, text);
      element.after(field);
      field.select();
    }
    setTimeout(() => (element.textContent = label), 1500);
  });
  return element;
}

function list(title: string, lines: string[], className = ""): HTMLElement[] {
  return lines.length ? [make("h3", {}, title), make("ul", { class: `lines ${className}` }, ...lines.map((line) => make("li", {}, line)))] : [];
}

function folded(title: string, ...children: (HTMLElement | string)[]): HTMLElement {
  return make("details", {}, make("summary", {}, title), ...children);
}

function drawPicture(picture: Picture): HTMLElement {
  const svg = shape("svg", { viewBox: `0 0 ${picture.width} ${picture.height}`, preserveAspectRatio: "none", role: "img", "aria-label": `memory over the last step, ${picture.span}` });
  for (const area of picture.areas) svg.append(shape("polygon", { points: area.points, class: `c-${area.key}` }));
  drawTicks(svg, picture.ticks, picture.width);
  const legend = picture.areas.map((area) => make("span", {}, make("i", { class: `key c-${area.key}` }), area.label));
  return make("div", { class: "picture" }, make("div", { class: "plot" }, tickLabels(picture.ticks, picture.height), svg as unknown as HTMLElement), make("p", { class: "quiet" }, `The last step, ${picture.span}`), make("div", { class: "legend" }, ...legend.reverse()));
}

/** It breaks between its parts. */
function path(text: string): HTMLElement {
  return make("code", {}, ...text.split(".").flatMap((part, i) => (i ? [".", make("wbr", {}), part] : [part])));
}

export interface Acts {
  apply: (change: Change) => void;
  keep?: (answer: Answer) => void;
  close?: () => void;
}

export function drawAnswer(answer: Answer, acts: Acts, waiting = ""): HTMLElement {
  const badge = make("p", { class: "badge" }, [BADGES[answer.kind], waiting].filter(Boolean).join(" · "));
  const card = make("article", { class: `card ${answer.tone}`, "data-kind": answer.kind, "aria-live": "polite" }, badge, make("h2", { class: "answer" }, answer.headline), make("p", { class: "recipe" }, answer.recipe));
  if (answer.covered) card.append(make("p", { class: "recipe" }, answer.covered));
  const side = make("div", { class: "acts" }, copying("Copy command", answer.command));
  if (answer.python) side.append(copying("Copy Python", answer.python));
  if (answer.plan) side.append(copying("Copy plan", answer.plan));
  if (acts.keep && answer.kind !== "none") side.append(button("Keep beside", "to compare it with the next one", () => acts.keep!(answer)));
  if (acts.close) side.append(button("Take away", "", acts.close));
  if (answer.details) card.append(make("pre", { class: "details" }, answer.details));
  const facts = [...(answer.time ?? []), answer.cost ?? ""].filter(Boolean);
  if (facts.length) card.append(make("ul", { class: "lines time" }, ...facts.map((line) => make("li", {}, line))));
  if (answer.kind === "exact") side.append(make("a", { href: address("/report", [["answer", answer.key]]), target: "_blank", rel: "noopener" }, "Open the full report"));
  card.append(side);
  if (answer.ways?.length || answer.tried?.length) {
    const ways = (answer.ways ?? []).map((way) => button(way.text, "Change this control", () => acts.apply(way.change)));
    const [helps, fails] = [true, false].map((fits) => (answer.tried ?? []).filter((each) => each.fits === fits).map((each) => each.text));
    const alone = ways.length && !answer.ways!.some((way) => way.mayFit) ? [make("p", { class: "quiet" }, "No change alone is enough; these help most:")] : [];
    const section = make("section", { class: "helps" }, make("h3", {}, "What makes it fit"), ...alone, make("div", { class: "ways" }, ...ways), ...list("Tried by replaying this run: it fits with", helps));
    if (fails.length) section.append(folded(`${fails.length} more tried: not enough`, ...list("", fails)));
    card.append(section);
  }
  if (answer.gpus) {
    const rows = answer.gpus.map((gpu) => make("tr", { class: `${gpu.tone} ${gpu.isWanted ? "wanted" : ""}` }, make("th", { scope: "row" }, gpu.name), make("td", {}, bar(gpu.share, gpu.tone)), make("td", { class: "n wide" }, gpu.text), make("td", { class: "verdict" }, gpu.verdict)));
    card.append(make("section", { class: "gpus" }, make("h3", {}, "On every GPU"), make("table", {}, make("tbody", {}, ...rows))));
  }
  if (answer.picture) card.append(make("section", {}, make("h3", {}, "Memory over the step"), drawPicture(answer.picture)));
  const columns = make("div", { class: "columns" });
  if (answer.categories?.length) {
    const rows = answer.categories.map((part) => make("tr", {}, make("th", { scope: "row" }, make("i", { class: `key c-${part.key}` }), part.label), make("td", {}, bar(part.share, `c-${part.key}`)), make("td", { class: "n" }, part.text)));
    columns.append(make("section", {}, make("h3", {}, "The peak by category"), make("table", {}, make("tbody", {}, ...rows))));
  }
  if (answer.modules?.length) {
    const rows = answer.modules.map((part) => make("tr", {}, make("th", { scope: "row" }, path(part.path)), make("td", {}, bar(part.share, "plain")), make("td", { class: "n" }, part.text)));
    columns.append(make("section", {}, make("h3", {}, "The modules that hold it"), make("table", { class: "held" }, make("tbody", {}, ...rows))));
  }
  if (columns.childElementCount) card.append(columns);
  if (answer.ladder) {
    const rungs = answer.ladder.map(([label, size, remark]) => make("div", {}, make("dt", {}, label), make("dd", { class: "figure" }, size), make("dd", { class: "quiet" }, remark)));
    card.append(folded("Allocated, reserved, and what the GPU must have", make("dl", { class: "ladder" }, ...rungs), ...list("", answer.remarks ?? [])));
  }
  if (answer.assumptions?.length) card.append(folded(`${answer.assumptions.length} assumption${answer.assumptions.length === 1 ? "" : "s"}`, ...list("", answer.assumptions)));
  return card;
}
