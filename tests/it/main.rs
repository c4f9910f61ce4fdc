mod recipe;
