/** Ids of models, projects, inferences and producers, as they are shown. Those who send them choose them. */

/** Control characters, and those that have no width or turn the direction of what stands around them. */
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

/** An id in which nothing is hidden: two that differ never look the same because of what cannot be seen. */
export function showId<Id extends string | null | undefined>(id: Id): Id {
  return id?.replace(UNSEEN, escapeLetter) as Id;
}

function escapeLetter(letter: string): string {
  return `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`;
}
