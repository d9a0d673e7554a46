// What lies where in the allocator's segments, at one of some moments.

import { make } from "./dom";
import type { Packed, PackedSegments } from "./packed";

const ROW = 16;
const SVG = "http://www.w3.org/2000/svg";

export class Segments {
  private readonly drawing = document.createElementNS(SVG, "svg");
  private readonly slider = make("input", { type: "range", min: "0", step: "1", "aria-label": "moment of the step with the peak" });
  private readonly when = make("p", { class: "when" });
  private readonly said = make("p", { class: "said quiet", "aria-live": "polite" });

  constructor(
    host: HTMLElement,
    private readonly data: PackedSegments,
    private readonly packed: Packed,
  ) {
    const { drawing, slider } = this;
    drawing.setAttribute("viewBox", `0 0 ${data.width} ${data.rows * ROW}`);
    drawing.setAttribute("preserveAspectRatio", "none");
    drawing.setAttribute("height", String(data.rows * ROW));
    drawing.setAttribute("role", "img");
    slider.max = String(data.moments.length - 1);
    slider.value = String(data.peak);
    slider.addEventListener("input", () => this.show(Number(slider.value)));
    for (const kind of ["pointermove", "pointerdown"] as const) drawing.addEventListener(kind, (event) => this.say(event.target as Element));
    host.append(slider, this.when, drawing, this.said);
    this.show(data.peak);
  }

  private show(moment: number): void {
    const { data, packed } = this;
    const words = packed.texts[data.momentTexts[moment]];
    this.when.textContent = words;
    this.slider.setAttribute("aria-valuetext", words);
    this.drawing.setAttribute("aria-label", words);
    this.said.textContent = `Point at a piece for what it is; ${data.rowText}.`;
    this.drawing.replaceChildren(...data.moments[moment].map((number) => this.piece(data.pieces[number])));
  }

  private piece([row, from, width, kind, text]: PackedSegments["pieces"][number]): SVGElement {
    const rect = document.createElementNS(SVG, "rect");
    const isBegin = kind === "begin";
    const place = { x: from, y: row * ROW + (isBegin ? 0 : 2), width: isBegin ? this.data.width / 500 : width, height: ROW - (isBegin ? 0 : 3) };
    for (const [name, value] of Object.entries(place)) rect.setAttribute(name, String(value));
    rect.setAttribute("class", isBegin ? "begin" : kind === "free" ? "gap" : `c-${kind}`);
    rect.dataset.text = String(text);
    return rect;
  }

  private say(target: Element): void {
    const text = (target as SVGElement).dataset?.text;
    if (text) this.said.textContent = this.packed.texts[Number(text)];
  }
}
