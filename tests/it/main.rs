mod checkpoint;
mod fetch;
mod golden;
mod recipe;
mod support;
