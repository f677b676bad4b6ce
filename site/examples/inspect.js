import { inspectModel } from "trainweb";

const report = await inspectModel("first.onnx", { loss: "CrossEntropyLoss", optimizer: "AdamW" });
for (const [name, value] of Object.entries(report)) {
  console.log(`${name}:`, value);
}
