
mod recipe;
