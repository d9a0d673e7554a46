// The modules as bars below bars, each as wide as what it holds with all below it.

import { hierarchy, type HierarchyRectangularNode, partition } from "d3-hierarchy";
import { button, choice, make } from "./dom";
import type { Modules, Packed, Tree } from "./packed";

const NARROWEST = 2;
const ROOM_FOR_NAME = 30;
const ROWS = 7;
const FAMILIES = ["parameters", "gradients", "optimizer_state", "activations", "the_rest"];

interface Module {
  id: number;
  parts: Module[];
}
type Cell = HierarchyRectangularNode<Module>;

export class Icicle {
  private readonly bars = make("div", { class: "bars", role: "group", "aria-label": "Modules" });
  private readonly path = make("nav", { class: "crumbs", "aria-label": "The modules above" });
  private readonly details = make("div", { class: "readout module" });
  private tree: Tree;
  private modules: Module[];
  private measure = 0;
  private top = 0;
  private width = 0;
  private cells = new Map<number, { cell: Cell; element: HTMLButtonElement }>();
  private readonly texts: string[];

  constructor(host: HTMLElement, private readonly data: Modules, private readonly packed: Packed) {
    this.texts = packed.texts;
    this.tree = data.trees[0];
    this.modules = modulesOf(this.tree);
    const left = make("div", { class: "icicle" }, this.toolbar(), this.path, this.bars);
    host.append(left, this.details);
    this.bars.addEventListener("keydown", (event) => this.onKey(event));
    new ResizeObserver(() => this.bars.clientWidth !== this.width && this.draw()).observe(this.bars);
    this.draw();
  }

  private toolbar(): HTMLElement {
    const measures = choice("Measure", this.data.measures.map(({ label }) => label), 0, (measure) => {
      this.measure = measure;
      this.draw();
    });
    if (this.data.trees.length === 1) return make("div", { class: "toolbar" }, measures);
    const trees = choice("Layers", this.data.trees.map(({ label }) => label), 0, (tree) => {
      this.tree = this.data.trees[tree];
      this.modules = modulesOf(this.tree);
      this.top = 0;
      this.draw();
    });
    return make("div", { class: "toolbar" }, measures, trees);
  }

  private draw(focus = false): void {
    const width = (this.width = this.bars.clientWidth);
    if (!width) return;
    const values = this.tree.values[this.measure];
    const root = hierarchy(this.modules[this.top], (module) => module.parts);
    root.each((node) => ((node as { value?: number }).value = values[node.data.id]));
    const placed = partition<Module>().size([width, root.height + 1])(root);
    const shown = (cell: Cell) => cell.depth < ROWS && cell.x1 - cell.x0 >= NARROWEST && values[cell.data.id] > 0;
    const visible = placed.descendants().filter(shown);
    this.cells = new Map(visible.map((cell) => [cell.data.id, { cell, element: this.bar(cell) }]));
    const rows = Math.max(1, ...visible.map((cell) => cell.depth + 1));
    this.bars.style.setProperty("--rows", String(rows));
    this.bars.replaceChildren(...[...this.cells.values()].map(({ element }) => element));
    if (!visible.length) this.bars.replaceChildren(make("p", { class: "quiet" }, "There is none."));
    this.showPath();
    this.describe(this.top);
    this.rove(this.top, focus);
  }

  private bar(cell: Cell): HTMLButtonElement {
    const { id } = cell.data;
    const [name, size] = [this.texts[this.tree.names[id]], this.texts[this.tree.valueTexts[this.measure][id]]];
    const wide = cell.x1 - cell.x0 >= ROOM_FOR_NAME;
    const words = wide ? [make("span", { class: "name" }, name), make("span", { class: "size" }, size)] : [];
    const label = `${this.texts[this.tree.paths[id]]}, ${size}`;
    const element = make("button", { type: "button", class: "cell", tabindex: "-1", "aria-label": label, "data-node": String(id) });
    element.append(...words, this.strip(id));
    element.style.left = `${cell.x0}px`;
    element.style.width = `${Math.max(cell.x1 - cell.x0 - 1, 1)}px`;
    element.style.setProperty("--row", String(cell.depth));
    element.addEventListener("click", () => this.descend(id));
    element.addEventListener("pointerenter", () => this.describe(id));
    element.addEventListener("focus", () => this.describe(id));
    return element;
  }

  /** What the memory is made of; a single family is all of one colour. */
  private strip(id: number): HTMLElement {
    const strip = make("span", { class: "strip" });
    if (this.measure > 0) strip.classList.add(`f-${this.data.measures[this.measure].key}`);
    else {
      let start = 0;
      this.tree.strips[id].forEach((end, i) => {
        if (end > start) {
          const piece = make("i", { class: `f-${FAMILIES[i]}` });
          piece.style.flexGrow = String(end - start);
          strip.append(piece);
        }
        start = end;
      });
    }
    return strip;
  }

  private descend(id: number): void {
    if (id === this.top) this.ascend();
    else if (this.modules[id].parts.length) {
      this.top = id;
      this.draw(true);
    } else this.rove(id, true);
  }

  private ascend(): void {
    this.top = Math.max(this.tree.parents[this.top], 0);
    this.draw(true);
  }

  private showPath(): void {
    const above: number[] = [];
    for (let id = this.top; id >= 0; id = this.tree.parents[id]) above.unshift(id);
    this.path.replaceChildren(
      ...above.map((id) => {
        const name = this.texts[this.tree.names[id]];
        if (id === this.top) return make("span", { "aria-current": "true" }, name);
        return button(name, "", () => {
          this.top = id;
          this.draw(true);
        });
      }),
    );
  }

  private describe(id: number): void {
    const { tree, texts } = this;
    const row = (label: Node | string, text: number) =>
      make("tr", {}, make("th", { scope: "row" }, label), make("td", { class: "n" }, texts[text]));
    const figures = this.data.measures.map(({ key, label }, i) =>
      row(make("span", { class: "swatch" }, make("i", { class: `key f-${key}` }), label), tree.valueTexts[i][id]),
    );
    const peaks = tree.peaks
      .filter(({ texts }) => texts[id] !== this.packed.nothingText)
      .map(({ label, texts }) => row(label, texts[id]));
    const kind = texts[tree.kinds[id]];
    const facts = kind ? `${kind}, forward ran ${texts[tree.calls[id]]} times` : "";
    this.details.dataset.node = String(id);
    this.details.replaceChildren(
      make("p", { class: "head" }, make("code", {}, texts[tree.paths[id]])),
      make("p", { class: "quiet where" }, facts),
      make("table", { class: "amounts", "aria-label": "The chosen module" }, make("tbody", {}, ...figures, ...peaks)),
    );
  }

  // -- keyboard --------------------------------------------------------------------------------------------------------------

  /** One bar can be reached with Tab; the arrows take it from there. */
  private rove(id: number, focus: boolean): void {
    const element = this.cells.get(id)?.element;
    if (!element) return;
    for (const other of this.cells.values()) other.element.tabIndex = -1;
    element.tabIndex = 0;
    if (focus) element.focus({ preventScroll: true });
  }

  private onKey(event: KeyboardEvent): void {
    const id = Number((event.target as HTMLElement).dataset.node);
    if (!this.cells.has(id)) return;
    if (event.key === "Escape" || event.key === "Backspace") this.ascend();
    else {
      const next = this.neighbour(id, event.key);
      if (next === undefined) return;
      this.rove(next, true);
    }
    event.preventDefault();
  }

  private neighbour(id: number, key: string): number | undefined {
    const { cell } = this.cells.get(id)!;
    const shown = (cells: Cell[]) => cells.map(({ data }) => data.id).filter((other) => this.cells.has(other));
    if (key === "ArrowUp") return cell.parent?.data.id;
    if (key === "ArrowDown") return shown(cell.children ?? [])[0];
    if (key !== "ArrowLeft" && key !== "ArrowRight") return undefined;
    const row = shown([...this.cells.values()].map((other) => other.cell).filter((other) => other.depth === cell.depth));
    return row[row.indexOf(id) + (key === "ArrowLeft" ? -1 : 1)];
  }
}

function modulesOf(tree: Tree): Module[] {
  const modules: Module[] = tree.parents.map((_, id) => ({ id, parts: [] }));
  tree.parents.forEach((parent, id) => parent >= 0 && modules[parent].parts.push(modules[id]));
  return modules;
}
