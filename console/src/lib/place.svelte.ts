/** Where the console is: its link, kept equal to the address bar. */

import { formatLink, type Link, parseLink } from "./link.ts";

class Place {
  link = $state.raw<Link>(parseLink(location.hash));

  constructor() {
    addEventListener("hashchange", () => {
      this.link = parseLink(location.hash);
    });
  }

  /** The address of a place that differs from this one. */
  at(changes: Partial<Link>): string {
    return formatLink({ ...this.link, ...changes });
  }

  go(changes: Partial<Link>): void {
    location.hash = this.at(changes);
  }

  /** Goes there, with no step of its own for Back. */
  replace(changes: Partial<Link>): void {
    this.link = { ...this.link, ...changes };
    history.replaceState(null, "", formatLink(this.link));
  }
}

export const place = new Place();
