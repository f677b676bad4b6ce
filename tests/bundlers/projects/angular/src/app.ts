import { Component, provideZonelessChangeDetection } from "@angular/core";
import { bootstrapApplication } from "@angular/platform-browser";
import { env, Tensor, TrainingSession } from "trainweb";
import { report } from "./train.js";

@Component({ selector: "app-root", template: "<p>training ...</p>" })
class App {
  constructor() {
    report(env, Tensor, TrainingSession);
  }
}

void bootstrapApplication(App, { providers: [provideZonelessChangeDetection()] });
