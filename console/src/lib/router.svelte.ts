/** The link of the page that is shown, the same as in the address bar. */

import { formatLink, type Link, parseLink } from "./link.ts";

class Router {
  link = $state.raw<Link>(parseLink(location.hash));

  constructor() {
    addEventListener("hashchange", () => {
      this.link = parseLink(location.hash);
    });
  }

  /** This link with changes; what was marked or compared of one inference is not of another. */
  change(changes: Partial<Link>): Link {
    return { ...this.link, marked: "", beside: "", ...changes };
  }

  /** The address of a page whose link differs so from this one. */
  href(changes: Partial<Link>): string {
    return formatLink(this.change(changes));
  }

  go(changes: Partial<Link>): void {
    location.hash = this.href(changes);
  }

  /** Goes there, with no step of its own for Back. */
  replace(changes: Partial<Link>): void {
    this.link = this.change(changes);
    history.replaceState(null, "", formatLink(this.link));
  }
}

export const router = new Router();
