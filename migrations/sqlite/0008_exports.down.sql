DROP TABLE sandbox_exports;
