/** A small card near what the pointer is on. */

import { element } from "./dom.js";

export class Tip {
  constructor(root) {
    this.root = root;
    this.node = element("div", { class: "tip", attributes: { role: "tooltip" } });
    this.node.hidden = true;
    root.append(this.node);
  }

  /** Shows the children below the anchor, or above it where there is no room. */
  show(anchor, children) {
    this.node.replaceChildren(...children);
    this.node.hidden = false;
    const frame = this.root.getBoundingClientRect();
    const box = anchor.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.node;
    const left = Math.max(8, Math.min(box.left - frame.left + box.width / 2 - width / 2, frame.width - width - 8));
    const below = box.bottom + 8 + height < innerHeight;
    const top = below ? box.bottom + 8 - frame.top : box.top - frame.top - height - 8;
    this.node.style.left = `${left}px`;
    this.node.style.top = `${top}px`;
  }

  hide() {
    this.node.hidden = true;
  }
}
