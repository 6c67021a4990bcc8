"""Methods and networks that the tables of forecasts compare with: strategies and clients by dotted path."""
