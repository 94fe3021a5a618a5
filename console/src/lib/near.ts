/** Tells elements of the page when they come near the window, and when they are far from it. */

export const NEAR = "700px";
const heard = new WeakMap<Element, (isNear: boolean) => void>();

const observer = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting, boundingClientRect } of entries) {
      const isHidden = !isIntersecting && !boundingClientRect.width; // with its page, to which one returns
      if (!isHidden) heard.get(target)?.(isIntersecting);
    }
  },
  { root: document.getElementById("main"), rootMargin: NEAR }, // which scrolls: a margin of the window does not reach into it
);

/** Returns what ends it. */
export function whenNear(element: Element, hear: (isNear: boolean) => void): () => void {
  heard.set(element, hear);
  observer.observe(element);
  return () => {
    observer.unobserve(element);
    heard.delete(element);
  };
}
