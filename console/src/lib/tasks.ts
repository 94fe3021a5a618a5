/** How each task type is shown: the one table. */

type Media = "picture" | "text" | "none";
type Way = "shapes" | "bars" | "tokens" | "chat" | "answers" | "values" | "raw";

export interface Task {
  title: string;
  /** What the input is. */
  media: Media;
  /** How the predictions are drawn or listed. */
  way: Way;
  /** Whether the stored response has contours or keypoints, which the index does not have. */
  isOutlined?: boolean;
}

const UNKNOWN: Task = { title: "Unknown task", media: "none", way: "raw" };

export const TASKS: Record<string, Task> = {
  image_classification: { title: "Image classification", media: "picture", way: "bars" },
  object_detection: { title: "Object detection", media: "picture", way: "shapes" },
  oriented_object_detection: { title: "Oriented detection", media: "picture", way: "shapes" },
  image_segmentation: { title: "Image segmentation", media: "picture", way: "shapes", isOutlined: true },
  keypoint_detection: { title: "Keypoints", media: "picture", way: "shapes", isOutlined: true },
  image_text_to_text: { title: "Image and text to text", media: "picture", way: "chat" },
  text_classification: { title: "Text classification", media: "text", way: "bars" },
  token_classification: { title: "Token classification", media: "text", way: "tokens" },
  text_generation: { title: "Text generation", media: "text", way: "chat" },
  question_answering: { title: "Question answering", media: "text", way: "answers" },
  tabular: { title: "Tabular", media: "none", way: "values" },
  unknown: UNKNOWN,
};

/** The task of an inference: its own, else its model's. */
export function findTask(...names: (string | null | undefined)[]): Task {
  for (const name of names) {
    if (name && name !== "unknown" && Object.hasOwn(TASKS, name)) return TASKS[name] ?? UNKNOWN;
  }
  return UNKNOWN;
}
