DROP TABLE sweep_items;
DROP TABLE sweeps;
