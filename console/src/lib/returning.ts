/** Going to the issuer to sign in, and coming back. The link stays in this tab: no server is told it. */

const NAME = "link-before-sign-in";
const FAULTS: Record<string, string> = {
  refused: "Sign-in failed: the issuer or the store refused it. The api's log says why.",
  expired: "Sign-in took too long, or was started in another browser. Try again.",
  unavailable: "The issuer is not responding. Try again later, or use a key.",
  later: "Too many failed sign-in attempts. Try again in a minute.",
};
let fault = "";

/** Why signing in at the issuer did not work; empty if it did, or was not tried. */
export function findFault(): string {
  return fault;
}

export function goTo(url: string): void {
  swapStored(location.hash);
  location.assign(url);
}

/** Goes on where one was before signing in. */
export function comeBack(): void {
  fault = FAULTS[new URLSearchParams(location.search).get("sign-in") ?? ""] ?? "";
  const stored = swapStored("");
  const hash = location.hash || stored;
  if (hash === location.hash && !fault) return;
  history.replaceState(null, "", location.pathname + hash);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

/** Keeps another link, and returns the one before. */
function swapStored(hash: string): string {
  try {
    const before = sessionStorage.getItem(NAME) ?? "";
    if (hash) sessionStorage.setItem(NAME, hash);
    else sessionStorage.removeItem(NAME);
    return before;
  } catch {
    return ""; // storage is switched off
  }
}
