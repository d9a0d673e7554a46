// What is in use at the chosen moment, in words.

import { make } from "./dom";
import type { Packed, Timeline } from "./packed";

export class Readout {
  readonly element = make("div", { class: "readout" });
  private readonly total = make("span", { class: "figure" });
  private readonly reserved = make("span");
  private readonly where = make("p", { class: "quiet where" });
  private readonly amounts: HTMLElement[];
  private readonly rows: HTMLElement[];
  private readonly blocks = make("tbody");
  private readonly texts: string[];
  /** Are moments told by their time in the last step? */
  isOverTime = false;
  /** Does the chosen moment stay when the pointer moves on? */
  isHeld = false;

  /** `toggle` leaves a category out of the drawing, or takes it in again. */
  constructor(private readonly data: Timeline, private readonly packed: Packed, toggle: (category: number, isShown: boolean) => void) {
    this.texts = packed.texts;
    this.amounts = data.categories.map(() => make("td", { class: "n" }));
    this.rows = data.categories.map(({ key, label }, i) => {
      const name = make("button", { type: "button", class: "swatch", "aria-pressed": "true", title: "in the drawing, or not" }, make("i", { class: `key c-${key}` }), label);
      const row = make("tr", {}, make("th", { scope: "row" }, name), this.amounts[i]);
      name.addEventListener("click", () => {
        const isShown = name.getAttribute("aria-pressed") !== "true";
        name.setAttribute("aria-pressed", String(isShown));
        row.classList.toggle("left-out", !isShown);
        toggle(i, isShown);
      });
      return row;
    });
    const head = make("p", { class: "head" }, this.total, " in use");
    if (data.reservedTexts) head.append(make("span", { class: "reserved" }, make("i", { class: "key line" }), this.reserved, " reserved"));
    const categories = make("table", { class: "amounts" }, make("tbody", {}, ...[...this.rows].reverse()));
    categories.setAttribute("aria-label", "In use at the chosen moment, by category");
    const largest = make("table", { class: "largest" }, make("caption", {}, "Largest blocks"), this.blocks);
    this.element.append(head, this.where, categories, largest);
  }

  show(moment: number): void {
    const { data, texts } = this;
    this.total.textContent = texts[data.totalTexts[moment]];
    if (data.reservedTexts) this.reserved.textContent = texts[data.reservedTexts[moment]];
    this.where.textContent = this.place(moment);
    this.element.dataset.event = String(data.events[moment]);
    this.element.classList.toggle("held", this.isHeld);
    this.amounts.forEach((cell, i) => {
      const text = data.categoryTexts[i][moment];
      cell.textContent = texts[text];
      this.rows[i].classList.toggle("none", text === this.packed.nothingText);
    });
    const list = data.blockLists[data.blocksOfMoment[moment]];
    this.blocks.replaceChildren(...list.map((block) => this.row(block)));
  }

  /** The same, to be read aloud. */
  sentence(moment: number): string {
    return `${this.texts[this.data.totalTexts[moment]]} in use at ${this.place(moment)}`;
  }

  private place(moment: number): string {
    const { data, texts } = this;
    if (this.isOverTime && data.clock) {
      const time = texts[data.clock.timeTexts[Math.max(moment - data.clock.firstMoment, 0)]];
      return `${time} of the step, event ${data.events[moment].toLocaleString("en")}: ${texts[data.whereTexts[moment]]}`;
    }
    const time = data.timeTexts ? `, after ${texts[data.timeTexts[moment]]}` : "";
    return `event ${data.events[moment].toLocaleString("en")}${time}: ${texts[data.whereTexts[moment]]}`;
  }

  private row(block: number): HTMLElement {
    const [category, size, op, owner] = this.data.blocks[block];
    const name = make("span", { class: "owner", title: this.texts[owner] }, this.texts[owner]);
    const made = make("span", { class: "quiet op", title: this.texts[op] }, this.texts[op]);
    const key = make("i", { class: `key c-${category}` });
    return make("tr", {}, make("td", {}, key), make("td", {}, name, made), make("td", { class: "n" }, this.texts[size]));
  }
}
